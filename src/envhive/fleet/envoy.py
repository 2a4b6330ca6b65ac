"""What Envoy is told: one address in front of many servers, where sessions find their own.

    newcomer ───────────────► newcomers: the server with the fewest sessions; another one if it is full
    names a session ("r2.…") ► owners: the server of that name, even while it drains; any other if it is gone

The names are in the ids that servers give to sessions, so Envoy keeps no state, and any number of Envoys do the same.
"""

from __future__ import annotations

import json
import math
import os
import resource
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from envhive.errors import ConfigurationError
from envhive.providers.base import Replica

ATTEMPTS: Final = 8
"""Servers that a newcomer is offered to, before it hears that all are full."""

_TYPES: Final = "type.googleapis.com/envoy"
_SPARE_DESCRIPTORS: Final = 1000
_DESCRIPTORS_A_SESSION: Final = 2
_NO_LIMIT: Final = 1_000_000
_WEIGHT: Final = 100_000
"""Of a server, plus its number. Where all weights are equal, Envoy draws two at random and takes the one with fewer
requests: of 200 sessions that came at once, one of four servers got 93, because what is being connected does not count
yet. Where they differ ever so little, it deals sessions out in turn, more of them to whoever has fewer."""
_BIAS: Final = 0.25
"""How much more. With Envoy's 1.0, a server that had many a moment ago is left out for long: of 200 sessions that came
after 200 others had gone, one got 77 and one 24. With this all got 48 to 53."""
_BUFFER: Final = 64 * 1024
_SESSION_HEADERS: Final = ("x-session-id", "mcp-session-id")
_SESSION_PARAMETERS: Final = ("session", "session_id")


def config(host: str, port: int, servers: Path | list[Replica], admin: Path | None = None) -> dict[str, Any]:
    """All that an Envoy needs to know: where to listen, and the servers, or the folder whose files tell which.

    `admin` is where its own pages can be asked for, by whoever may use that socket.
    """
    return {
        **({} if admin is None else {"admin": {"address": {"pipe": {"path": str(admin), "mode": 0o600}}}}),
        "node": {"id": "envhive", "cluster": "envhive"},
        "static_resources": {
            "listeners": [_listener(host, port)],
            "clusters": [_newcomers(servers), _owners(servers)],
        },
        "overload_manager": {"resource_monitors": [_connection_limit()]},
    }


def write_servers(folder: Path, replicas: Iterable[Replica]) -> None:
    """Tell every Envoy that watches `folder` which servers there are."""
    replicas = list(replicas)
    # The owners first: whoever opens a session on a new server must find it again with the next request.
    _write(folder, "owners", replicas)
    _write(folder, "newcomers", [each for each in replicas if not each.draining])


def processes_for(sessions: int) -> int:
    """How many Envoys it takes for so many sessions: each may have only so many open connections."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    if limit == resource.RLIM_INFINITY:
        return 1
    return max(1, math.ceil(_DESCRIPTORS_A_SESSION * sessions / max(1, limit - _SPARE_DESCRIPTORS)))


def _listener(host: str, port: int) -> dict[str, Any]:
    manager = {
        "@type": f"{_TYPES}.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager",
        "stat_prefix": "fleet",
        "upgrade_configs": [{"upgrade_type": "websocket"}],
        "stream_idle_timeout": "0s",  # a session may think for as long as it likes
        "request_headers_timeout": "10s",
        "http_filters": [_finding_the_name(), _router()],
        "route_config": {"name": "fleet", "virtual_hosts": [_virtual_host()]},
    }
    return {
        "name": "fleet",
        "address": {"socket_address": {"address": host, "port_value": port}},
        "per_connection_buffer_limit_bytes": _BUFFER,
        "filter_chains": [
            {"filters": [{"name": "envoy.filters.network.http_connection_manager", "typed_config": manager}]}
        ],
    }


def _connection_limit() -> dict[str, Any]:
    """Envoy warns as long as it is told none; the file-descriptor limit is the real one."""
    kind = f"{_TYPES}.extensions.resource_monitors.downstream_connections.v3.DownstreamConnectionsConfig"
    return {
        "name": "envoy.resource_monitors.global_downstream_max_connections",
        "typed_config": {"@type": kind, "max_active_downstream_connections": _NO_LIMIT},
    }


def _finding_the_name() -> dict[str, Any]:
    """The server's name, from a session's id in the address or a header; the last that is there counts."""

    def rule(header: str, pattern: str) -> dict[str, Any]:
        rewrite = {"pattern": {"regex": pattern}, "substitution": "\\1"}
        found = {"metadata_namespace": "envoy.lb", "key": "replica", "regex_value_rewrite": rewrite}
        return {"header": header, "on_header_present": found}

    parameters = "|".join(_SESSION_PARAMETERS)
    return {
        "name": "envoy.filters.http.header_to_metadata",
        "typed_config": {
            "@type": f"{_TYPES}.extensions.filters.http.header_to_metadata.v3.Config",
            "request_rules": [
                rule(":path", rf"^.*[?&](?:{parameters})=([a-z0-9-]+)\..*$"),
                *(rule(header, r"^([a-z0-9-]+)\..*$") for header in _SESSION_HEADERS),
            ],
        },
    }


def _router() -> dict[str, Any]:
    kind = f"{_TYPES}.extensions.filters.http.router.v3.Router"
    return {"name": "envoy.filters.http.router", "typed_config": {"@type": kind}}


def _virtual_host() -> dict[str, Any]:
    to_owner = {"cluster": "owners", "timeout": "0s", "idle_timeout": "0s"}
    by_header = [{"headers": [{"name": name, "present_match": True}]} for name in _SESSION_HEADERS]
    by_parameter = [{"query_parameters": [{"name": name, "present_match": True}]} for name in _SESSION_PARAMETERS]
    return {
        "name": "fleet",
        "domains": ["*"],
        "include_request_attempt_count": True,
        "routes": [
            *({"match": {"prefix": "/", **match}, "route": to_owner} for match in [*by_header, *by_parameter]),
            # A connection that is cut before it is answered has opened nothing that anybody knows of.
            _to_newcomers({"headers": [{"name": "upgrade", "present_match": True}]}, "reset"),
            _to_newcomers({}, "reset-before-request"),
        ],
    }


def _to_newcomers(match: dict[str, Any], also: str) -> dict[str, Any]:
    attempts = {"key": "x-envhive-attempts", "value": str(ATTEMPTS)}
    return {
        "match": {"prefix": "/", **match},
        "route": {"cluster": "newcomers", "timeout": "0s", "idle_timeout": "0s", "retry_policy": _retries(also)},
        "request_headers_to_add": [{"header": attempts, "append_action": "OVERWRITE_IF_EXISTS_OR_ADD"}],
    }


def _retries(also: str) -> dict[str, Any]:
    """Only where nothing has happened yet: nobody was there, or a server said that it has no room."""
    return {
        "retry_on": f"connect-failure,refused-stream,retriable-headers,{also}",
        "retriable_headers": [{"name": "x-envhive-refused", "present_match": True}],
        "num_retries": ATTEMPTS - 1,
        "retry_back_off": {"base_interval": "0.005s", "max_interval": "0.05s"},
        "retry_host_predicate": [
            {
                "name": "envoy.retry_host_predicates.previous_hosts",
                "typed_config": {"@type": f"{_TYPES}.extensions.retry.host.previous_hosts.v3.PreviousHostsPredicate"},
            }
        ],
        "host_selection_retry_max_attempts": 1000,  # draws, until one is a server that has not refused
    }


def _newcomers(servers: Path | list[Replica]) -> dict[str, Any]:
    return {
        **_cluster("newcomers", servers),
        "lb_policy": "LEAST_REQUEST",  # a WebSocket is a request for as long as it is open
        "least_request_lb_config": {"active_request_bias": {"default_value": _BIAS, "runtime_key": "fleet.bias"}},
        "health_checks": [
            {
                "timeout": "5s",
                "interval": "1s",
                "no_traffic_interval": "1s",
                "unhealthy_threshold": 3,
                "healthy_threshold": 1,
                "http_health_check": {"path": "/health"},
            }
        ],
    }


def _owners(servers: Path | list[Replica]) -> dict[str, Any]:
    return {
        **_cluster("owners", servers),
        "lb_policy": "ROUND_ROBIN",
        "lb_subset_config": {
            "fallback_policy": "ANY_ENDPOINT",  # which says that there is no such session
            "subset_selectors": [{"keys": ["replica"], "fallback_policy": "ANY_ENDPOINT"}],
        },
    }


def _cluster(name: str, servers: Path | list[Replica]) -> dict[str, Any]:
    everything = ("max_connections", "max_pending_requests", "max_requests", "max_retries")
    if isinstance(servers, Path):
        watched = {"path": str(servers / f"{name}.json"), "watched_directory": {"path": str(servers)}}
        source = {"path_config_source": watched, "resource_api_version": "V3"}
        found: dict[str, Any] = {"type": "EDS", "eds_cluster_config": {"eds_config": source}}
    else:
        found = {"type": "STRICT_DNS", "load_assignment": _assignment(name, servers)}
    return {
        "name": name,
        **found,
        "connect_timeout": "5s",
        "per_connection_buffer_limit_bytes": _BUFFER,
        # By default news of a server waits for up to a second to be told together with more.
        "common_lb_config": {"healthy_panic_threshold": {"value": 0}, "update_merge_window": "0s"},
        "circuit_breakers": {"thresholds": [dict.fromkeys(everything, _NO_LIMIT)]},
    }


def _assignment(name: str, replicas: list[Replica]) -> dict[str, Any]:
    return {
        "cluster_name": name,
        "endpoints": [
            {"lb_endpoints": [_endpoint(replica, _WEIGHT + number) for number, replica in enumerate(replicas)]}
        ],
    }


def host_and_port(replica: Replica) -> str:
    """A server as Envoy names it."""
    parts = urlsplit(replica.url)
    return f"{parts.hostname}:{parts.port or 80}"


def _endpoint(replica: Replica, weight: int) -> dict[str, Any]:
    parts = urlsplit(replica.url)
    if parts.scheme != "http" or parts.hostname is None:
        raise ConfigurationError(f"A fleet's servers are reached by plain HTTP, not {replica.url}.")
    address = {"address": parts.hostname, "port_value": parts.port or 80}
    return {
        "endpoint": {"address": {"socket_address": address}},
        "metadata": {"filter_metadata": {"envoy.lb": {"replica": replica.name}}},
        "load_balancing_weight": weight,
    }


def _write(folder: Path, name: str, replicas: list[Replica]) -> None:
    """Envoy looks again when a file is moved into its folder."""
    kind = f"{_TYPES}.config.endpoint.v3.ClusterLoadAssignment"
    draft = folder / f".{name}.json"
    draft.write_text(json.dumps({"resources": [{"@type": kind, **_assignment(name, replicas)}]}))
    os.replace(draft, folder / f"{name}.json")
