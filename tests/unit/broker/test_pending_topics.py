"""Creation of internal topics for streams groups: concurrency, and cached failures."""

from penstock.broker.requests.pending_topics import CREATED_MAX, FAILURES_MAX, PendingTopics


async def test_a_topic_has_only_one_creation_in_flight() -> None:
    pending = PendingTopics()
    assert pending.claim(["b", "a"]) == ["a", "b"]
    assert pending.claim(["c", "b"]) == ["c"]
    pending.release(["b"])
    assert pending.claim(["b", "c"]) == ["b"]


async def test_concurrent_topic_creations_are_limited() -> None:
    pending = PendingTopics()
    names = [f"t{number:05}" for number in range(CREATED_MAX + 1)]
    assert pending.claim(names) == names[:-1]
    assert pending.claim(names) == []
    pending.release(names[:1])
    assert pending.claim([names[-1]]) == [names[-1]]


async def test_a_failed_topic_creation_is_not_retried_at_once() -> None:
    pending = PendingTopics()
    pending.failed("a", "why", 60.0)
    pending.failed("b", "long ago", 0.0)
    assert pending.claim(["a", "b"]) == ["b"]
    assert pending.failures(["a", "b", "c"]) == {"a": "why"}


async def test_the_oldest_failures_are_dropped_first() -> None:
    pending = PendingTopics()
    for number in range(FAILURES_MAX + 1):
        pending.failed(f"t{number}", "why", 60.0)
    assert pending.failures(["t0", "t1", f"t{FAILURES_MAX}"]) == {
        "t1": "why",
        f"t{FAILURES_MAX}": "why",
    }
