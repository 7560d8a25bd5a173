"""Which node of the network is which site: nodes are asked, because their numbers say nothing."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field


@dataclass
class NodeRegistry:
    """Sites of the experiment and the nodes that speak for them."""

    sites: tuple[str, ...]  # of the experiment
    nodes: dict[str, int] = field(default_factory=dict)  # site -> node
    refusals: dict[int, str] = field(default_factory=dict)  # node -> why it may not take part
    # site -> the same, where the node told its name
    reasons: dict[str, str] = field(default_factory=dict)
    sizes: dict[str, int] = field(default_factory=dict)  # site -> images that it declared first

    def unidentified(self, online: Iterable[int]) -> list[int]:
        """Nodes that have not been asked for their name, or not since they were refused."""
        return sorted(set(online) - set(self.nodes.values()) - set(self.refusals))

    def forget_absent(self, online: Iterable[int]) -> None:
        """Forget nodes that are not connected any more."""
        present = set(online)
        self.nodes = {site: node for site, node in self.nodes.items() if node in present}
        self.refusals = {node: reason for node, reason in self.refusals.items() if node in present}

    def retry(self) -> None:
        """Ask refused nodes again: somebody may have fixed them."""
        self.refusals = {}
        self.reasons = {}

    def enter(self, node: int, site: str, key_name: str, error: str | None) -> str | None:
        """Register a node under the name it gives; returns the reason if it is refused.

        `key_name` is the name under which the coordinator registered the node's key, empty without
        keys. `error` is the node's own reason for not taking part.
        """
        if key_name and key_name != site:
            error = f"it calls itself {site}, but its key is registered as {key_name}"
            site = key_name
        elif site not in self.sites:
            error = error or f"{site} is not one of the experiment's sites"
        elif error is None and self.nodes.get(site, node) != node:
            error = f"another node is {site} already"
            self.refusals[node] = error
            return error
        if error is not None:
            self.refusals[node] = error
            self.reasons[site] = error
            return error
        self.nodes[site] = node
        self.reasons.pop(site, None)
        return None

    def missing_sites(self) -> list[str]:
        """Sites that neither connected nor were refused by name."""
        answers = self.nodes.keys() | self.reasons.keys()
        return [site for site in self.sites if site not in answers]

    def absence_reason(self, site: str) -> str:
        """Why a site does not take part."""
        return self.reasons.get(site, "not connected")
