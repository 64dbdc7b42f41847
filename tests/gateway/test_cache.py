"""The bounded cache (R16.2)."""

from gateway.cache import GenerationCache


def test_it_never_holds_more_than_two_generations():
    cache = GenerationCache(10)
    for number in range(1000):
        cache.put(number, str(number))
        assert len(cache) <= 20
    assert cache.get(999) == "999"
    assert cache.get(0) is None


def test_what_is_used_stays():
    cache = GenerationCache(10)
    cache.put("kept", 1)
    for number in range(200):
        cache.put(number, number)
        assert cache.get("kept") == 1
