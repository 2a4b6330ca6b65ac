"""Replies without ids find their requests, whatever times out and in whatever order."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from envhive.wire.pairing import Pairing, Ticket


@given(st.lists(st.sampled_from(["send", "reply", "give up"]), max_size=60), st.randoms(use_true_random=False))
def test_a_reply_reaches_its_own_request_or_nobody(events: list[str], random: object) -> None:
    line = Pairing()
    sent, answered = 0, 0
    waiting: dict[int, Ticket] = {}
    got: dict[int, object] = {}
    for event in events:
        if event == "send":
            number = sent
            waiting[number] = line.expect(lambda reply, error, number=number: got.__setitem__(number, reply))
            sent += 1
        elif event == "give up" and waiting:
            number = random.choice(sorted(waiting))  # type: ignore[attr-defined]
            waiting.pop(number).abandon()
        elif event == "reply":
            assert line.deliver(answered) is (answered < sent)
            if answered < sent:
                expected = waiting.pop(answered, None)
                assert (answered in got) is (expected is not None)
                answered += 1
    assert all(reply == number for number, reply in got.items())
    assert len(line) == sent - answered


def test_a_lost_connection_fails_everyone_who_still_waits() -> None:
    line, seen = Pairing(), []
    line.expect(lambda reply, error: seen.append(("first", error)))
    line.expect(lambda reply, error: seen.append(("second", error))).abandon()
    lost = ConnectionError("gone")
    line.fail_all(lambda: lost)
    assert seen == [("first", lost)]
    assert len(line) == 0
