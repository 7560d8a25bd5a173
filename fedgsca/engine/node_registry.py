"""Which node of the network is which site: learned by asking, because a node's number says nothing."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field


@dataclass
class NodeRegistry:
    """Sites of the experiment and the nodes that speak for them."""

    expected: tuple[str, ...]
    nodes: dict[str, int] = field(default_factory=dict)  # site -> node
    refused: dict[int, str] = field(default_factory=dict)  # node -> why it may not take part
    reasons: dict[str, str] = field(
        default_factory=dict
    )  # site -> the same, where the node said its name

    def strangers(self, online: Iterable[int]) -> list[int]:
        """Nodes that have not been asked for their name, or not since they were refused."""
        return sorted(set(online) - set(self.nodes.values()) - set(self.refused))

    def forget_absent(self, online: Iterable[int]) -> None:
        here = set(online)
        self.nodes = {site: node for site, node in self.nodes.items() if node in here}
        self.refused = {node: why for node, why in self.refused.items() if node in here}

    def pardon(self) -> None:
        """Ask refused nodes again: somebody may have mended them."""
        self.refused, self.reasons = {}, {}

    def enter(self, node: int, site: str, registered: str, error: str | None) -> str | None:
        """Write a node down under the name it gives; returns the reason if it is refused.

        `registered` is the name under which the coordinator registered the node's key, empty where there are no keys.
        """
        if registered and registered != site:
            error = f"it calls itself {site}, but its key is registered as {registered}"
            site = registered
        elif site not in self.expected:
            error = error or f"{site} is not one of the experiment's sites"
        elif error is None and self.nodes.get(site, node) != node:
            error = f"another node is {site} already"
            self.refused[node] = error
            return error
        if error is not None:
            self.refused[node] = error
            self.reasons[site] = error
            return error
        self.nodes[site] = node
        self.reasons.pop(site, None)
        return None

    def missing(self) -> list[str]:
        """Expected sites that neither came nor were refused by name."""
        return [
            site for site in self.expected if site not in self.nodes and site not in self.reasons
        ]

    def why_absent(self, site: str) -> str:
        return self.reasons.get(site, "not connected")
