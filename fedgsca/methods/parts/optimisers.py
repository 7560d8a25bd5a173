"""SGD and AdamW. The first use of torch.optim imports torch's compiler, which takes seconds."""

from __future__ import annotations

from collections.abc import Sequence

from fedgsca.support.lazy_torch import Tensor, nn, no_grad, torch


class SGD:
    """Plain SGD with momentum and weight decay."""

    def __init__(
        self,
        parameters: Sequence[nn.Parameter],
        lr: float,
        momentum: float = 0.0,
        weight_decay: float = 0.0,
        clip: float | None = None,
    ) -> None:
        """`clip` is the largest norm of the gradient of a step."""
        self.clip = clip
        self.parameters = [p for p in parameters if p.requires_grad]
        self.lr = lr
        self.momentum = momentum
        self.weight_decay = weight_decay
        self._velocity: list[Tensor] | None = None

    def zero_grad(self) -> None:
        """Forget the gradients of the last step."""
        for parameter in self.parameters:
            parameter.grad = None

    @no_grad
    def step(self) -> None:
        """Move the parameters that have a gradient."""
        parameters: list[Tensor] = []
        gradients: list[Tensor] = []
        for parameter in self.parameters:
            if parameter.grad is not None:
                parameters.append(parameter)
                gradients.append(parameter.grad)
        self.move(parameters, gradients)

    def move(self, parameters: list[Tensor], gradients: list[Tensor]) -> None:
        """Move the parameters by their gradients; without a graph (`torch.no_grad`)."""
        gradients = self._clip(gradients)
        if self.weight_decay:
            gradients = list(torch._foreach_add(gradients, parameters, alpha=self.weight_decay))
        if self.momentum:
            if self._velocity is None:
                self._velocity = [gradient.clone() for gradient in gradients]
            else:
                torch._foreach_mul_(self._velocity, self.momentum)
                torch._foreach_add_(self._velocity, gradients)
            gradients = self._velocity
        torch._foreach_add_(parameters, gradients, alpha=-self.lr)

    def _clip(self, gradients: list[Tensor]) -> list[Tensor]:
        """The gradients, all of them shorter by one factor if their norm is above `clip`."""
        if self.clip is None or not gradients:
            return gradients
        norm = torch.stack(torch._foreach_norm(gradients)).norm()
        return list(torch._foreach_mul(gradients, (self.clip / (norm + 1e-12)).clamp(max=1.0)))


class AdamW(SGD):
    """AdamW (Loshchilov and Hutter, 2019) with the usual constants, 0.9, 0.999 and 1e-8."""

    _first: list[Tensor]
    _second: list[Tensor]
    _num_steps = 0

    def move(self, parameters: list[Tensor], gradients: list[Tensor]) -> None:
        """Move the parameters by their gradients; without a graph (`torch.no_grad`)."""
        gradients = self._clip(gradients)
        if not self._num_steps:
            self._first = [torch.zeros_like(gradient) for gradient in gradients]
            self._second = [torch.zeros_like(gradient) for gradient in gradients]
        self._num_steps += 1
        torch._foreach_mul_(parameters, 1.0 - self.lr * self.weight_decay)
        torch._foreach_lerp_(self._first, gradients, 0.1)
        torch._foreach_mul_(self._second, 0.999)
        torch._foreach_addcmul_(self._second, gradients, gradients, 0.001)
        scale = (1.0 - 0.999**self._num_steps) ** 0.5
        roots = torch._foreach_div(torch._foreach_sqrt(self._second), scale)
        torch._foreach_add_(roots, 1e-8)
        rate = self.lr / (1.0 - 0.9**self._num_steps)
        torch._foreach_addcdiv_(parameters, self._first, roots, -rate)
