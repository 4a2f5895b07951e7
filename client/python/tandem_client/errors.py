"""The exception of failed calls."""

from __future__ import annotations

from .messages import BadRequest, ErrorInfo, RetryInfo, RpcStatus

_DETAILS = "grpc-status-details-bin"


class TandemError(Exception):
    """A failed call.

    `status`: the gRPC status ("INVALID_ARGUMENT"). `reason`: from docs/grpc_api.md ("QUEUE_FULL"), or empty.
    `fields`: field name -> violation. `retry_after`: seconds, if the server sends a retry delay."""

    def __init__(
        self,
        status: str,
        message: str,
        reason: str = "",
        request_id: str = "",
        fields: dict[str, str] | None = None,
        retry_after: float | None = None,
    ):
        super().__init__(f"{status}: {message}")
        self.status = status
        self.message = message
        self.reason = reason
        self.request_id = request_id
        self.fields = fields or {}
        self.retry_after = retry_after

    @classmethod
    def of(cls, error) -> TandemError:
        """Converts a grpc.RpcError, sync or asyncio."""
        out = cls(error.code().name, error.details() or "")
        for key, value in error.trailing_metadata() or ():
            if key == _DETAILS:
                out._read(value)
        return out

    def _read(self, packed: bytes) -> None:
        for detail in RpcStatus.FromString(packed).details:
            name = detail.type_url.rpartition("/")[2]
            if name == "google.rpc.ErrorInfo":
                info = ErrorInfo.FromString(detail.value)
                self.reason = info.reason
                self.request_id = info.metadata.get("request_id", "")
            elif name == "google.rpc.BadRequest":
                for wrong in BadRequest.FromString(detail.value).field_violations:
                    self.fields[wrong.field] = wrong.description
            elif name == "google.rpc.RetryInfo":
                delay = RetryInfo.FromString(detail.value).retry_delay
                self.retry_after = delay.seconds + delay.nanos * 1e-9
