"""The registry's journal in SQLite: every outcome is written before it is told, recovery is a replay."""

from lorafsm_journal.codec import decode_event, decode_outcome, encode_event, encode_outcome
from lorafsm_journal.cut import Cut, cut
from lorafsm_journal.errors import JournalCode, JournalError, Undecodable
from lorafsm_journal.host import JournaledRegistry
from lorafsm_journal.journal import Journal
from lorafsm_journal.recovery import Recovered, Verified
from lorafsm_journal.rows import Malformed, Row
from lorafsm_journal.writer import Level

__all__ = [
    "Cut",
    "Journal",
    "JournalCode",
    "JournalError",
    "JournaledRegistry",
    "Level",
    "Malformed",
    "Recovered",
    "Row",
    "Undecodable",
    "Verified",
    "cut",
    "decode_event",
    "decode_outcome",
    "encode_event",
    "encode_outcome",
]
