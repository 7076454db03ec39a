"""The journal's text: what is written can be read back, and nothing else can be read at all."""

import json
import pickle

import pytest
from attrs import evolve, fields
from hypothesis import given
from hypothesis import strategies as st

from lorafsm.errors import LoraFsmError
from lorafsm.events import EVENTS, BindFirst, Commit, EngineUp, Heartbeat, Ready, Reserve
from lorafsm.identity import SessionKey, VersionKey
from lorafsm.lifecycle import VersionState
from lorafsm.manifest import Plan
from lorafsm.outcomes import Blocker, Code, Done, Refusal, VersionStatus
from lorafsm.records import Config, Resident
from lorafsm_journal import Undecodable, codec, decode_event, decode_outcome, encode_event, encode_outcome
from lorafsm_journal.forms import form_of

KEY = VersionKey("e1", 1)
COMMIT = Commit(key=KEY, token="t1", expected_revision=0, now=7)
COMMIT_TEXT = '{"Commit":{"expected_revision":0,"key":{"epoch":"e1","version_id":1},"now":7,"token":"t1"}}'
UP = EngineUp(
    engine="E0",
    incarnation=1,
    seq=3,
    base_fingerprint="f",
    residents=frozenset({Resident(KEY, "a" * 64, 1), Resident(VersionKey("e1", 10), "b" * 64, 2)}),
    foreign=frozenset({"z", "a"}),
)


def test_every_class_of_the_protocol_can_be_written():
    assert set(codec.EVENTS.values()) == set(EVENTS)
    for cls in [*codec.EVENTS.values(), *codec.OUTCOMES.values(), Config]:
        form_of(cls)


@pytest.mark.parametrize("event", EVENTS, ids=lambda cls: cls.__name__)
def test_every_event_comes_back(event: type):
    @given(st.from_type(event))
    def comes_back(value):
        text = encode_event(value)
        back = decode_event(text)
        assert back == value
        assert type(back) is event
        assert encode_event(back) == text
        assert text.isascii()

    comes_back()


@pytest.mark.parametrize("outcome", codec.OUTCOMES.values(), ids=lambda cls: cls.__name__)
def test_every_outcome_comes_back(outcome: type):
    @given(st.from_type(outcome))
    def comes_back(value):
        back = decode_outcome(encode_outcome(value))
        assert back == value
        assert type(back) is outcome

    comes_back()


def test_the_text_is_canonical():
    assert encode_event(COMMIT) == COMMIT_TEXT
    assert json.loads(encode_event(UP))["EngineUp"]["foreign"] == ["a", "z"]
    same = evolve(UP, residents=frozenset(sorted(UP.residents, reverse=True)))
    assert encode_event(same) == encode_event(UP)


def test_enums_and_nested_records_keep_their_types():
    status = VersionStatus(KEY, VersionState.RETIRED, "a" * 64, 4)
    back = decode_outcome(encode_outcome(status))
    assert isinstance(back, VersionStatus)
    assert back.state is VersionState.RETIRED
    blocker = Blocker(KEY, VersionState.RETIRED, 2, "sessions", SessionKey("e1", "o", 0), 5)
    refusal = Refusal(Code.CAPACITY_ERROR, "both slots are held", blockers=(blocker,))
    assert decode_outcome(encode_outcome(refusal)) == refusal


def test_characters_that_utf8_lacks_come_back():
    event = Heartbeat(owner="\ud800\x00é")
    assert decode_event(encode_event(event)) == event


@pytest.mark.parametrize(
    ("old", "new", "field"),
    [
        ('"Commit"', '"Comit"', "event"),
        ('"Commit"', '"os.system"', "event"),
        ('"now":7,', "", "Commit"),
        ('"now":7,', '"now":7,"nowhere":1,', "Commit"),
        ('"now":7', '"now":"7"', "Commit.now"),
        ('"now":7', '"now":true', "Commit.now"),
        ('"now":7', '"now":7.0', "Commit.now"),
        ('"now":7', '"now":null', "Commit.now"),
        ('"now":7', '"now":NaN', "Commit.now"),
        ('"now":7', '"now":6,"now":7', "event"),
        ('"now":7', '"now": 7', "event"),
        ('"t1"', "1", "Commit.token"),
        ('"t1"', '["t1"]', "Commit.token"),
        ('"version_id":1', '"version_id":false', "Commit.key.version_id"),
        ('{"epoch":"e1","version_id":1}', '["e1",1]', "Commit.key"),
        ('{"epoch":"e1","version_id":1}', "null", "Commit.key"),
        ('"t1"}}', '"t1"},"Done":{}}', "event"),
        ('"t1"}}', '"t1"}', "event"),
        (COMMIT_TEXT, "[]", "event"),
        (COMMIT_TEXT, '{"Commit":[]}', "Commit"),
        (COMMIT_TEXT, "[" * 100_000, "event"),
    ],
)
def test_any_other_text_is_refused_and_named(old: str, new: str, field: str):
    text = COMMIT_TEXT.replace(old, new)
    assert text != COMMIT_TEXT
    with pytest.raises(Undecodable) as caught:
        decode_event(text)
    assert caught.value.field == field


@pytest.mark.parametrize(
    ("old", "new", "field"),
    [
        ('["a","z"]', '["z","a"]', "event"),
        ('["a","z"]', '["a","a"]', "EngineUp.foreign"),
        ('["a","z"]', '"az"', "EngineUp.foreign"),
        ('["a","z"]', "{}", "EngineUp.foreign"),
        ('"number":2', '"number":"2"', "EngineUp.residents[0].number"),
    ],
)
def test_sets_are_strict_too(old: str, new: str, field: str):
    text = encode_event(UP).replace(old, new)
    assert text != encode_event(UP)
    with pytest.raises(Undecodable) as caught:
        decode_event(text)
    assert caught.value.field == field


@pytest.mark.parametrize(
    ("text", "field"),
    [
        ('{"Done":{"code":"OK"}}', "Done"),
        ('{"Refusal":null}', "Refusal"),
        (encode_outcome(Refusal(Code.NOT_READY, "wait")).replace("NOT_READY", "NOT_STEADY"), "Refusal.code"),
        (encode_outcome(Refusal(Code.NOT_READY, "wait")).replace('"engines":[]', '"engines":"E0"'), "Refusal.engines"),
        (encode_event(COMMIT), "outcome"),
    ],
)
def test_outcomes_are_strict(text: str, field: str):
    with pytest.raises(Undecodable) as caught:
        decode_outcome(text)
    assert caught.value.field == field


@pytest.mark.parametrize(
    ("event", "field"),
    [
        (evolve(COMMIT, key="e1-1"), "Commit.key"),
        (evolve(COMMIT, key=None), "Commit.key"),
        (evolve(COMMIT, now=1.5), "Commit.now"),
        (evolve(COMMIT, expected_revision=True), "Commit.expected_revision"),
        (evolve(UP, foreign={"a"}), "EngineUp.foreign"),
        (evolve(UP, residents=frozenset({"a"})), "EngineUp.residents[]"),
        (Reserve(key=KEY, digest=b"a", plan=Plan(0, ""), token="t"), "Reserve.digest"),
        (BindFirst(session=("e1", "o", 0)), "BindFirst.session"),
        (Heartbeat(owner="o", now=10**5000), "event"),
        (Done(), "event"),
        (object(), "event"),
    ],
)
def test_what_could_not_be_read_back_is_not_written(event, field: str):
    with pytest.raises(Undecodable) as caught:
        encode_event(event)
    assert caught.value.field == field


def test_a_token_is_in_no_error():
    with pytest.raises(Undecodable) as caught:
        encode_event(Ready(**{f.name: "secret-token" for f in fields(Ready)}))
    assert "secret-token" not in str(caught.value)


def test_errors_are_of_the_family_and_cross_processes():
    error = Undecodable("Commit.now", "must be int, not str")
    assert isinstance(error, LoraFsmError)
    back = pickle.loads(pickle.dumps(error))
    assert (type(back), str(back), back.field) == (Undecodable, str(error), "Commit.now")


def test_a_type_without_a_form_is_a_programming_error():
    for kind in (float, list[int], bytes, dict[str, int], str | VersionState):
        with pytest.raises(TypeError):
            form_of(kind)
