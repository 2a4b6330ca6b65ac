"""What comes of a tool: its result, or why there is none."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from envhive.tools import ToolError, ToolErrorType

if TYPE_CHECKING:
    from fastmcp.tools import ToolResult


class Opened(dict[str, Any]):
    """A dict whose values are attributes, too: environments written for FastMCP's client read its results so.

    Example:
        >>> result = Opened(data={"won": True})
        >>> result["data"] == result.data
        True
    """

    __slots__ = ()

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name) from None


Outcome = Opened | ToolError
"""A result (`content`, `structured_content`, `meta`, `data`, `is_error`), or why there is none."""


def plain(value: Any) -> Any:
    """What a tool returned, with lists and numbers for arrays and their scalars, which FastMCP would print and cut."""
    if type(value) is dict:
        return {name: plain(each) for name, each in value.items()}
    if type(value) in (list, tuple):
        return type(value)(plain(each) for each in value)
    convert = None if isinstance(value, type) else getattr(value, "tolist", None)
    return convert() if callable(convert) else value


def finished(found: Any, result: ToolResult) -> Outcome:
    """What came of a tool, as FastMCP tells it."""
    if result.is_error:
        text = "".join(getattr(block, "text", "") for block in result.content)
        return ToolError(error_type=ToolErrorType.EXECUTION_ERROR, message=text or "The tool failed")
    dumped = [block.model_dump(mode="json", by_alias=True, exclude_none=True) for block in result.content]
    content = [Opened(block, annotations=block.get("annotations"), meta=block.pop("_meta", None)) for block in dumped]
    structured = result.structured_content
    schema = getattr(found, "output_schema", None) or {}
    wrapped = bool(schema.get("x-fastmcp-wrap-result")) and structured is not None
    data = structured["result"] if wrapped and structured is not None else structured
    return Opened(
        content=content,
        structured_content=structured,
        meta=result.meta,
        data=Opened(data) if isinstance(data, dict) else data,
        is_error=False,
    )


def unknown(name: str) -> ToolError:
    return ToolError(error_type=ToolErrorType.TOOL_NOT_FOUND, message=f"Unknown tool: {name!r}")


def timed_out(name: str, limit: float) -> ToolError:
    return ToolError(error_type=ToolErrorType.TIMEOUT, message=f"Tool {name!r} timed out after {limit:g} seconds")
