"""Where a request goes at the upstream."""

import pytest

from gateway.targets import target


@pytest.mark.parametrize(
    ("base", "path", "expected"),
    [
        ("https://h/v1", "/v1/chat/completions", "https://h/v1/chat/completions"),
        ("https://h/v1", "/chat/completions", "https://h/v1/chat/completions"),
        ("https://h/v1/", "/v1/models", "https://h/v1/models"),
        ("https://h:8443/api/v1", "/v1/chat/completions", "https://h:8443/api/v1/chat/completions"),
        ("https://h/api/v1", "/chat/completions", "https://h/api/v1/chat/completions"),
        ("https://h/api/v1", "/api/v1/chat/completions", "https://h/api/v1/chat/completions"),
        ("https://h/v1beta/openai", "/v1/chat/completions", "https://h/v1beta/openai/chat/completions"),
        ("https://h", "/v1/chat/completions", "https://h/v1/chat/completions"),
        ("https://h/", "/chat/completions", "https://h/chat/completions"),
        (
            "https://x.openai.azure.com",
            "/openai/deployments/gpt-4o/chat/completions",
            "https://x.openai.azure.com/openai/deployments/gpt-4o/chat/completions",
        ),
        (
            "https://h/openai",
            "/openai/deployments/a/chat/completions",
            "https://h/openai/deployments/a/chat/completions",
        ),
        ("http://[::1]:9/v1", "/models", "http://[::1]:9/v1/models"),
        ("https://h/v1", "/v1", "https://h/v1"),
        ("https://h/api", "/v1", "https://h/api"),
        ("https://h/v1", "/v10/models", "https://h/v1/v10/models"),
        ("https://h/v1", "/", "https://h/v1/"),
    ],
)
def test_path_and_base_url_are_joined_once(base: str, path: str, expected: str):  # R2.1
    assert target(base, path.encode(), b"") == expected


@pytest.mark.parametrize(
    "path",
    ["/v1/files/a%2Fb", "/v1/a%20b%zz", "/v1/a//b", "/v1/./a/../b", "/v1/a;b=c,d", "/v1/~a:b@c", "/v1/%E4%b8%ad"],
)
def test_a_path_is_kept_as_it_came(path: str):  # R2.1
    assert target("https://h/v1", path.encode(), b"") == "https://h" + path


def test_the_query_is_kept_as_it_came():  # R2.1
    assert target("https://h", b"/a", b"api-version=2024-10-21&x=%2f+&y") == (
        "https://h/a?api-version=2024-10-21&x=%2f+&y"
    )


def test_bytes_that_may_not_stand_in_a_url_are_encoded_one_by_one():
    assert target("https://h", b"/caf\xc3\xa9#x", b"q=\xff") == "https://h/caf%C3%A9%23x?q=%FF"
