"""CDI specs that vanish or are altered while the driver runs are written again.

kubelet remembers what was prepared and does not ask again, so nobody else would notice. Looking costs one system call
a file; a directory watch would need one and a thread as well, and says nothing of a file that was written in place
through another mount.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import Final

from dranode.driver.core.metadata import metadata_spec_file
from dranode.driver.node import Node
from dranode.driver.specs import Marks

log = logging.getLogger(__name__)

LOOK_SECONDS: Final = 0.5
"""How often to look, so that a spec is back within a second."""


@dataclass(slots=True)
class SpecWatch:
    """Watches the specs of one node's claims.

    Attributes:
        node: whose specs.
        rewritten: how many were written again since start.
    """

    node: Node
    rewritten: int = 0
    # Every claim's files, as they were when they were last looked into.
    _seen: dict[str, Marks] = field(default_factory=dict)
    _failing: dict[str, str] = field(default_factory=dict)

    def look(self) -> None:
        """Look once.

        Raises:
            LedgerError: the ledger cannot be read.
        """
        files = self.node.specs.marks(metadata_spec_file(self.node.plugin.driver, "", "").removesuffix("_.json"))
        now = {uid: files.get(uid, frozenset()) for uid in files.keys() | self.node.on_record()}
        touched = [uid for uid, marks in now.items() if marks not in (self._seen.get(uid), self.node.left_as(uid))]
        if touched or self._failing:
            self._mend({*touched, *self._failing})
        self._seen = now

    def _mend(self, uids: set[str]) -> None:
        answers = self.node.mend_specs(uids)
        failing = {uid: str(error) for uid, error in answers.items() if error is not None}
        for uid, reason in failing.items():
            if self._failing.get(uid) != reason:
                log.error("uid=%s: %s", uid, reason)
        self._failing = failing
        for uid in answers.keys() - failing.keys():
            self.rewritten += 1
            log.warning("uid=%s driver=%s wrote its CDI spec again", uid, self.node.plugin.driver)
