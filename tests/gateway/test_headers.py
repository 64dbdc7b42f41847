"""Which headers cross the gateway (R2.8, R2.13)."""

from gateway.headers import credentials, end_to_end, header, header_list, request_headers, response_headers

KEPT = [
    (b"Authorization", b"Bearer sk-1"),
    (b"X-Custom", b"1"),
    (b"x-custom", b"2"),
    (b"Content-Type", b"application/json"),
    (b"User-Agent", b"me"),
    (b"Cookie", b"a=b"),
]


def test_order_duplicates_and_spelling_are_kept():
    assert request_headers(KEPT) == KEPT
    assert response_headers(KEPT) == KEPT


def test_hop_by_hop_headers_do_not_pass_nor_those_that_connection_lists():
    hops = [
        (b"Connection", b"close, X-Hop"),
        (b"connection", b"x-other"),
        (b"x-hop", b"1"),
        (b"X-Other", b"1"),
        (b"Keep-Alive", b"timeout=5"),
        (b"Proxy-Connection", b"x"),
        (b"TE", b"trailers"),
        (b"Trailer", b"x"),
        (b"Transfer-Encoding", b"chunked"),
        (b"Upgrade", b"h2c"),
        (b"Proxy-Authorization", b"x"),
        (b"Proxy-Authenticate", b"x"),
    ]
    assert end_to_end([*hops, *KEPT]) == KEPT
    assert request_headers([*hops, *KEPT]) == KEPT
    assert response_headers([*hops, *KEPT]) == KEPT


def test_internal_headers_host_and_expect_never_reach_the_upstream():
    internal = [
        (b"X-Palimpsest-Mode", b"off"),
        (b"x-palimpsest-session", b"s"),
        (b"Host", b"h"),
        (b"Expect", b"100-continue"),
    ]
    assert request_headers([*internal, *KEPT]) == KEPT


def test_the_headers_of_a_gateway_key_are_dropped_by_name():
    headers = [(b"api-key", b"plm_1"), (b"X-Api-Key", b"plm_1"), *KEPT]
    assert request_headers(headers, drop={b"api-key", b"x-api-key", b"authorization"}) == KEPT[1:]


def test_what_the_gateway_sets_replaces_the_clients_own():
    added = [(b"authorization", b"Bearer route"), (b"idempotency-key", b"new")]
    headers = [(b"Idempotency-Key", b"old"), *KEPT]
    assert request_headers(headers, add=added) == [*KEPT[1:], *added]


def test_lengths_encodings_and_digests_go_only_when_the_body_changed():
    about = [(b"Content-Length", b"5"), (b"Content-Encoding", b"gzip"), (b"Content-MD5", b"x"), (b"Digest", b"x")]
    assert request_headers([*about, *KEPT]) == [*about, *KEPT]
    assert request_headers([*about, *KEPT], body_changed=True) == KEPT
    assert response_headers([*about, (b"ETag", b"x"), *KEPT], body_changed=True) == KEPT


def test_an_uncompressed_answer_is_asked_for_in_the_place_of_the_clients_offer():
    headers = [(b"Accept-Encoding", b"gzip"), (b"a", b"1"), (b"accept-encoding", b"br")]
    assert request_headers(headers, identity=True) == [(b"Accept-Encoding", b"identity"), (b"a", b"1")]
    assert request_headers(headers) == headers


def test_nothing_is_added_that_the_client_did_not_send():
    assert request_headers([], identity=True, body_changed=True) == []  # R2.13


def test_the_answer_carries_the_gateways_own_headers_not_those_of_an_upstream_gateway():
    upstream = [(b"x-palimpsest-session", b"theirs"), (b"x-ratelimit-remaining-tokens", b"9"), (b"retry-after", b"1")]
    added = [(b"x-palimpsest-session", b"ours")]
    assert response_headers(upstream, add=added) == [*upstream[1:], *added]  # R2.7, R2.11


def test_reading_a_header():
    headers = [(b"X-A", b" 1 "), (b"x-a", b"2"), (b"b", b"")]
    assert header(headers, b"x-a") == b"1"
    assert header(headers, b"b") == b""
    assert header(headers, b"c") is None
    assert header_list(headers, b"x-a") == b"1, 2"
    assert header_list(headers, b"c") is None


def test_credentials_come_from_any_header_that_carries_them():
    headers = [
        (b"Authorization", b"bearer  sk-1 "),
        (b"Api-Key", b"k2"),
        (b"x-api-key", b"k3"),
        (b"authorization", b"Basic dTpw"),
        (b"authorization", b""),
        (b"x-other", b"k4"),
    ]
    assert credentials(headers) == [
        (b"authorization", b"sk-1"),
        (b"api-key", b"k2"),
        (b"x-api-key", b"k3"),
        (b"authorization", b"Basic dTpw"),
    ]
