"""Which proxy leads to a URL: the cases of Go's own tests (golang.org/x/net v0.62.0, http/httpproxy/proxy_test.go)."""

import ssl

import pytest

from dranode.driver.kube.proxy import ProxyError, ProxySettings, parsed_proxy, proxy_for, settings_of

URL = "http://example.com"


@pytest.mark.parametrize(
    ("settings", "url", "proxy"),
    [
        (ProxySettings("127.0.0.1:8080"), URL, "http://127.0.0.1:8080"),
        (ProxySettings("cache.corp.example.com:1234"), URL, "http://cache.corp.example.com:1234"),
        (ProxySettings("cache.corp.example.com"), URL, "http://cache.corp.example.com"),
        (ProxySettings("localhost"), URL, "http://localhost"),
        (ProxySettings("localhost:3128"), URL, "http://localhost:3128"),
        (ProxySettings("user:word@proxy:3128"), URL, "http://user:word@proxy:3128"),
        (ProxySettings("https://cache.corp.example.com"), URL, "https://cache.corp.example.com"),
        (ProxySettings("http://127.0.0.1:8080"), URL, "http://127.0.0.1:8080"),
        (ProxySettings("https://127.0.0.1:8080"), URL, "https://127.0.0.1:8080"),
        (ProxySettings("socks5://127.0.0.1"), URL, "socks5://127.0.0.1"),
        (ProxySettings("foo://host"), URL, "foo://host"),
        (ProxySettings("http.proxy.tld", "secure.proxy.tld"), "http://insecure.tld/", "http://http.proxy.tld"),
        (ProxySettings("http.proxy.tld", "secure.proxy.tld"), "https://secure.tld/", "http://secure.proxy.tld"),
        (
            ProxySettings("http.proxy.tld", "https://secure.proxy.tld"),
            "https://secure.tld/",
            "https://secure.proxy.tld",
        ),
        (ProxySettings("http.proxy.tld"), "https://secure.tld/", ""),
        (ProxySettings("http.proxy.tld"), "ftp://insecure.tld/", ""),
        (ProxySettings("", "https://secure.proxy.tld", cgi=True), "https://secure.tld/", "https://secure.proxy.tld"),
        (ProxySettings(), URL, ""),
        (ProxySettings("proxy", no_proxy="example.com"), "http://example.com/", ""),
        (ProxySettings("proxy", no_proxy=".example.com"), "http://example.com/", "http://proxy"),
        (ProxySettings("proxy", no_proxy="ample.com"), "http://example.com/", "http://proxy"),
        (ProxySettings("proxy", no_proxy="example.com"), "http://foo.example.com/", ""),
        (ProxySettings("proxy", no_proxy=".foo.com"), "http://example.com/", "http://proxy"),
        (ProxySettings("proxy", no_proxy=".示例.com"), "http://www.示例.com", ""),
        (ProxySettings("proxy", no_proxy="xn--fsq092h.com"), "http://www.示例.com", ""),
        (ProxySettings("proxy", no_proxy="示例.com"), "http://www.xn--fsq092h.com", ""),
        (ProxySettings("proxy", no_proxy="example.com"), "http://[1000::%25.example.com]:123", "http://proxy"),
    ],
)
def test_the_proxy_for_a_url(settings: ProxySettings, url: str, proxy: str) -> None:
    assert proxy_for(url, settings) == proxy


def test_a_proxy_that_a_web_client_may_have_set_is_refused() -> None:
    with pytest.raises(ProxyError, match="CGI"):
        proxy_for(URL, ProxySettings("http://10.1.2.3:8080", cgi=True))


NO_PROXY = (
    "foobar.com, .barbaz.net, *.wildcard.io, 192.168.1.1, 192.168.1.2:81, 192.168.1.3:80, 10.0.0.0/30, "
    "2001:db8::52:0:1, [2001:db8::52:0:2]:443, [2001:db8::52:0:3]:80, 2002:db8:a::45/64"
)
# The host, and whether it is reached through the proxy.
HOSTS = [
    ("localhost", False),
    ("127.0.0.1", False),
    ("127.0.0.2", False),
    ("[::1]", False),
    ("[::2]", True),
    ("192.168.1.1", False),
    ("192.168.1.2", True),
    ("192.168.1.3", False),
    ("192.168.1.4", True),
    ("10.0.0.2", False),
    ("[2001:db8::52:0:1]", False),
    ("[2001:db8::52:0:2]", True),
    ("[2001:db8::52:0:3]", False),
    ("[2002:db8:a::123]", False),
    ("[fe80::424b:c8be:1643:a1b6]", True),
    ("barbaz.net", True),
    ("www.barbaz.net", False),
    ("foobar.com", False),
    ("www.foobar.com", False),
    ("foofoobar.com", True),
    ("baz.com", True),
    ("localhost.net", True),
    ("local.localhost", True),
    ("barbarbaz.net", True),
    ("wildcard.io", True),
    ("nested.wildcard.io", False),
    ("awildcard.io", True),
]


@pytest.mark.parametrize(("host", "proxied"), HOSTS)
def test_hosts_that_are_reached_without_a_proxy(host: str, *, proxied: bool) -> None:
    url = f"http://{host}:80"
    assert bool(proxy_for(url, ProxySettings("proxy", no_proxy=NO_PROXY))) is proxied
    assert not proxy_for(url, ProxySettings("proxy", no_proxy="*"))


@pytest.mark.parametrize(
    ("no_proxy", "url", "proxied"),
    [
        # Cases that Go's tests leave out, from its source.
        (":1", URL, True),
        ("foo.com, *, bar.com", URL, False),
        ("10.0.0.0/255.255.255.0", "http://10.0.0.1", True),
        ("10.0.0.0/33", "http://10.0.0.1", True),
        ("10.0.0.7/24", "http://10.0.0.1", False),
        ("::ffff:10.0.0.0/104", "http://10.0.0.1", False),
        ("::/0", "http://10.0.0.1", True),
        ("10.0.0.1", "http://[::ffff:10.0.0.1]", False),
        ("", "http://[::ffff:127.0.0.1]", False),
        ("10.0.0.1:", "http://10.0.0.1:8443", False),
        ("example.com:443", "https://example.com", False),
        ("example.com:443", "https://example.com:6443", True),
        ("*.example.com:6443", "https://api.example.com:6443", False),
        ("EXAMPLE.com", "https://Example.COM", False),
        ("", "http://LOCALHOST", True),
        ("[::1", URL, True),
        ("10.0", "http://10.0.0.1", True),
        ("https://example.com", URL, True),
    ],
)
def test_entries_of_no_proxy(no_proxy: str, url: str, *, proxied: bool) -> None:
    assert bool(proxy_for(url, ProxySettings("proxy", "proxy", no_proxy))) is proxied


@pytest.mark.parametrize(
    ("environment", "settings"),
    [
        ({"HTTP_PROXY": "h", "HTTPS_PROXY": "s", "NO_PROXY": "n"}, ProxySettings("h", "s", "n")),
        ({"http_proxy": "h", "https_proxy": "s", "no_proxy": "n"}, ProxySettings("h", "s", "n")),
        (
            {
                "HTTP_PROXY": "H",
                "HTTPS_PROXY": "S",
                "NO_PROXY": "N",
                "http_proxy": "h",
                "https_proxy": "s",
                "no_proxy": "n",
            },
            ProxySettings("h", "s", "n"),
        ),
        ({"http_proxy": "", "HTTP_PROXY": "H"}, ProxySettings("H")),
        ({"REQUEST_METHOD": "PUT"}, ProxySettings(cgi=True)),
        ({"ALL_PROXY": "a", "all_proxy": "a"}, ProxySettings()),
    ],
)
def test_the_environments_proxy_settings(environment: dict[str, str], settings: ProxySettings) -> None:
    assert settings_of(environment) == settings


def test_a_proxys_address_and_credentials() -> None:
    proxy = parsed_proxy("https://me%40here:p%3aw@proxy.example.com", "HTTPS_PROXY", ssl.create_default_context)
    assert (proxy.host, proxy.port, proxy.authorization) == ("proxy.example.com", 443, "Basic bWVAaGVyZTpwOnc=")
    assert proxy.tls is not None
    proxy = parsed_proxy("http://[fd00::1]", "HTTPS_PROXY", ssl.create_default_context)
    assert (proxy.host, proxy.port, proxy.authorization, proxy.tls) == ("fd00::1", 80, "", None)
