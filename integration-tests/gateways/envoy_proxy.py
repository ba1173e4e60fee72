"""Envoy as a gateway: an external processor names the server for each request."""

import json
import shutil
import sys
from pathlib import Path

from servers import Process, fetch, free_port

DESTINATION = "x-gateway-destination-endpoint"


class Envoy(Process):
    def __init__(self, picker_port, folder):
        port, self.admin_port = free_port(), free_port()
        self.url = f"http://127.0.0.1:{port}"
        file = Path(folder) / "envoy.json"
        file.write_text(json.dumps(configuration(port, self.admin_port, picker_port)))
        program = shutil.which("envoy", path=Path(sys.executable).parent)
        super().__init__("Envoy", [program, "-c", file, "--use-dynamic-base-id", "--concurrency", 1, "-l", "warning"])

    def is_ready(self):
        try:
            return fetch(f"http://127.0.0.1:{self.admin_port}/ready").strip() == b"LIVE"
        except OSError:
            return False


def configuration(port, admin_port, picker_port):
    """Returns the configuration of Envoy: all requests pass the picker, and go to the address in the header."""
    kinds = "type.googleapis.com/envoy.extensions"

    def address(port):
        return {"socket_address": {"address": "127.0.0.1", "port_value": port}}

    external = {
        "@type": f"{kinds}.filters.http.ext_proc.v3.ExternalProcessor",
        "grpc_service": {"envoy_grpc": {"cluster_name": "picker"}},
        "message_timeout": "10s",
        "processing_mode": {
            "request_header_mode": "SEND",
            "request_body_mode": "BUFFERED",
            "response_header_mode": "SKIP",
            "request_trailer_mode": "SKIP",
            "response_trailer_mode": "SKIP",
        },
    }
    route = {"match": {"prefix": "/"}, "route": {"cluster": "servers", "timeout": "0s"}}
    manager = {
        "@type": f"{kinds}.filters.network.http_connection_manager.v3.HttpConnectionManager",
        "stat_prefix": "gateway",
        "route_config": {"virtual_hosts": [{"name": "all", "domains": ["*"], "routes": [route]}]},
        "http_filters": [
            {"name": "envoy.filters.http.ext_proc", "typed_config": external},
            {
                "name": "envoy.filters.http.router",
                "typed_config": {"@type": f"{kinds}.filters.http.router.v3.Router"},
            },
        ],
    }
    filters = [{"name": "envoy.filters.network.http_connection_manager", "typed_config": manager}]
    http2 = {
        "@type": f"{kinds}.upstreams.http.v3.HttpProtocolOptions",
        "explicit_http_config": {"http2_protocol_options": {}},
    }
    by_header = {
        "name": "servers",
        "type": "ORIGINAL_DST",
        "lb_policy": "CLUSTER_PROVIDED",
        "connect_timeout": "5s",
        "original_dst_lb_config": {"use_http_header": True, "http_header_name": DESTINATION},
    }
    endpoints = [{"lb_endpoints": [{"endpoint": {"address": address(picker_port)}}]}]
    picker = {
        "name": "picker",
        "type": "STATIC",
        "connect_timeout": "5s",
        "typed_extension_protocol_options": {"envoy.extensions.upstreams.http.v3.HttpProtocolOptions": http2},
        "load_assignment": {"cluster_name": "picker", "endpoints": endpoints},
    }
    return {
        "admin": {"address": address(admin_port)},
        "static_resources": {
            "listeners": [{"name": "http", "address": address(port), "filter_chains": [{"filters": filters}]}],
            "clusters": [by_header, picker],
        },
    }
