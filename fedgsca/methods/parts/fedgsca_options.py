"""The options of FedGSCA; `fedgsca config --method fedgsca` prints them with these descriptions."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, field_validator

from fedgsca.evidence import MAX_DECLINE, MIN_USEFUL
from fedgsca.methods.base import MethodOptions
from fedgsca.methods.parts.fedgsca_steps import STEP_BOUNDS
from fedgsca.selector import LOSS_CAP


class SelectorOptions(MethodOptions):
    """How the selector is fitted and applied (Eq. 1-6)."""

    scope: Literal["global", "own"] = Field(
        default="global",
        description="select by the merged selector (GSS) or by the site's own (CSS)",
    )
    losses_of: Literal["evidence", "received", "trained"] = Field(
        default="evidence",
        description="whose losses S_k is fitted to: of the evidence heads, which do not memorise "
        "(without them: received), of the model as received, or after training (the paper)",
    )
    memory: float = Field(
        default=0.8,
        ge=0,
        lt=1,
        description="weight of the past in the running mean of losses and predictions; "
        "0: this round only",
    )
    class_relative: bool = Field(
        default=True, description="compare a loss with those of the same given class"
    )
    var_floor: float = Field(
        default=0.25, ge=0, description="lower bound of both variances, nats^2"
    )
    clip: float | None = Field(
        default=LOSS_CAP, gt=0, description="largest loss that counts; none: unlimited"
    )
    monotone: bool = Field(default=True, description="a smaller loss is never less clean")
    second_start: bool = Field(
        default=True,
        description="start EM at the data, too, and keep the likelier fit; "
        "off: only at S (the paper)",
    )
    validity_test: bool = Field(
        default=True,
        description="discard a fit without two separate modes; off: every fit counts (the paper)",
    )


class GuardOptions(MethodOptions):
    """When a round's training set counts as a collapse (not in the paper)."""

    enabled: bool = Field(
        default=True,
        description="train on the given labels for a round in which D_hat looks like a collapse",
    )
    max_delta: float = Field(
        default=0.8, gt=0, le=1, description="largest believable share of wrong labels"
    )
    max_shift: float = Field(
        default=0.5,
        gt=0,
        le=1,
        description="largest change of the class distribution (total variation)",
    )
    min_class: int = Field(
        default=10, ge=1, description="a class with this many given samples may not vanish"
    )
    min_explained: float = Field(
        default=MIN_USEFUL,
        ge=0,
        lt=1,
        description="with evidence: what the heads must explain of a site's labels, from 0 "
        "(nothing) to 1; below it, the site trains on all its labels",
    )
    max_decline: float = Field(
        default=MAX_DECLINE,
        ge=0,
        le=1,
        description="with evidence: how much less the heads may explain than plain training did, "
        "before anything was selected; beyond it, the site trains on all its labels",
    )


class FedGSCAOptions(MethodOptions):
    """Options of FedGSCA; the defaults are our reading of the paper."""

    selection: bool = Field(
        default=True, description="off: train on all given labels (with the chosen loss)"
    )
    warmup: int = Field(
        default=5,
        ge=0,
        description="rounds on all given labels before selecting; the selector is fitted meanwhile",
    )
    wait_for_health: bool = Field(
        default=True,
        description="begin to select only when the merged selector was healthy twice in a row",
    )
    noise_level: float = Field(
        default=0.1, ge=0, le=1, description="delta below which a site trains on all its labels"
    )
    doubtful: Literal["keep", "flag"] = Field(
        default="keep",
        description="labels with a clean probability between 1 - tau and tau: "
        "keep, or flag (the paper)",
    )
    pseudo_labels: bool = Field(
        default=True, description="off: flagged samples are left out of the round"
    )
    thresholds: Literal["adaptive", "fixed"] = Field(
        default="adaptive", description="class thresholds of Eq. 9-10, or zeta for all classes"
    )
    zeta: float = Field(
        default=0.8,
        gt=0,
        le=1,
        description="zeta_0, the highest confidence that a pseudo-label needs",
    )
    average: Literal["literal", "per_class"] = Field(
        default="literal",
        description="denominator of Avg_c: all clean samples (as printed), "
        "or those predicted as the class",
    )
    unseen_class: Literal["zeta", "zero"] = Field(
        default="zeta",
        description="threshold of a class that is never predicted on clean samples (Avg_c = 0): "
        "zeta_0, or 0 (Eq. 10 as printed)",
    )
    loss: Literal["rcl", "ucl", "ce"] = Field(
        default="rcl", description="robust credal loss, its uniform ablation, or cross-entropy"
    )
    alpha: float = Field(
        default=0.05,
        ge=1e-3,
        lt=1,
        description="label relaxation: possibility of the classes other than the label",
    )
    beta_start: float = Field(
        default=0.75,
        gt=0,
        le=1,
        description="confidence from which another class is possible, at first",
    )
    beta_end: float = Field(
        default=0.55, gt=0, le=1, description="the same, approached towards the end"
    )
    beta_schedule: Literal["cosine", "linear", "constant"] = Field(
        default="cosine", description="how beta falls from beta_start to beta_end over the rounds"
    )
    credal_after_warmup: bool = Field(
        default=True,
        description="during warm-up only the given label is possible; "
        "otherwise a network that predicts one class for all would satisfy RCL",
    )
    class_balance: float = Field(
        default=0.5,
        ge=0,
        le=1,
        description="with evidence: exponent of the class weights in the loss, from the labels "
        "that all sites train on; 0: none",
    )
    step_bounds: tuple[float, float] | None = Field(
        default=STEP_BOUNDS,
        description="with evidence, on frozen features: smallest and largest sum of a label's "
        "steps over the run, learning rate x number of features x rounds x epochs / (4 x batch "
        "size), more with more than four sites; none: the learning rate as it is",
    )
    passes: Literal["one", "two"] = Field(
        default="two",
        description="with evidence, for a network that is trained: take the features and outputs "
        "of images from the training pass, or from a pass of their own before it",
    )
    diagnostics: bool = Field(
        default=True,
        description="also send delta, tau, thresholds, counts and guard (numbers for the log)",
    )
    selector: SelectorOptions = Field(
        default=SelectorOptions(),
        description="how the selector is fitted and applied",
    )
    guard: GuardOptions = Field(
        default=GuardOptions(),
        description="the guard against collapse",
    )

    @field_validator("step_bounds")
    @classmethod
    def check_order(cls, bounds: tuple[float, float] | None) -> tuple[float, float] | None:
        """Two positive numbers, the smaller one first."""
        if bounds is not None and not 0 < bounds[0] <= bounds[1]:
            raise ValueError("the bounds must be two positive numbers, the smaller one first")
        return bounds
