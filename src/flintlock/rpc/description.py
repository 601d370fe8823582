"""Reads a gateway's Protocol: its methods, and how their messages are encoded.

The rule for gateways: every public method is `async def name(self, message: SomeStruct) -> SomeStruct | None`, with one
msgspec Struct as its argument or none at all, answering a Struct, an optional Struct, or None. Then a message can gain
fields with defaults without breaking older peers, which a list of arguments cannot. Where several messages go the same
way (commands), a union of tagged Structs stands for the one; a peer that does not know a member refuses it by its tag.

Rejected: arbitrary signatures packed into tuples (no names on the wire, no evolution); streams (no caller needs them).
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Coroutine, Mapping
from types import MappingProxyType, NoneType, UnionType
from typing import Any, Final, Generic, Protocol, TypeAlias, TypeVar, Union, cast, get_args, get_origin, get_type_hints

import msgspec
from msgspec import Struct

from flintlock.model.errors import InvariantBroken, Refused

G = TypeVar("G")

Message: TypeAlias = Struct | None
Call: TypeAlias = Callable[["MethodShape", Message], Coroutine[Any, Any, Message]]
"""Carries one message to its method and returns the answer."""

_encode: Final = msgspec.msgpack.Encoder().encode


class MethodShape:
    """One method of a gateway: its request, its response, and how both are encoded."""

    __slots__ = (
        "_read_request",
        "_read_response",
        "_request_types",
        "_response_types",
        "gateway",
        "name",
        "parameter",
        "path",
        "request",
        "response",
    )

    def __init__(self, *, gateway: str, name: str, parameter: str, request: Any, response: Any) -> None:
        self.gateway = gateway
        self.name = name
        self.path = f"{gateway}/{name}"
        self.parameter = parameter
        self.request = request
        self.response = response
        self._request_types = _types(request)
        self._response_types = _types(response)
        self._read_request = msgspec.msgpack.Decoder(request).decode
        self._read_response = msgspec.msgpack.Decoder(response).decode

    def __repr__(self) -> str:
        return f"{self.gateway}.{self.name}"

    def encode_request(self, message: Message) -> bytes:
        """Raises `TypeError` for anything but the declared struct: the caller's bug, found before it travels."""
        if not isinstance(message, self._request_types):
            raise TypeError(f"{self!r} takes {_name(self.request)}, not {type(message).__name__}")
        return _encode(message)

    def decode_request(self, payload: bytes) -> Message:
        """Raises `Refused`, naming the field, if the bytes are not the declared struct."""
        try:
            return self._read_request(payload)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise Refused(f"{self!r} cannot read its {_name(self.request)}: {error}") from error

    def encode_response(self, answer: Message) -> bytes:
        """Raises `TypeError` if the handler returned something else than it declares."""
        if not isinstance(answer, self._response_types):
            raise TypeError(f"{self!r} answers {_name(self.response)}, not {type(answer).__name__}")
        return _encode(answer)

    def decode_response(self, payload: bytes) -> Message:
        """Raises `InvariantBroken` if the bytes are not the declared answer."""
        try:
            return self._read_response(payload)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise InvariantBroken(f"the answer of {self!r} is not a {_name(self.response)}: {error}") from error


@functools.cache
def describe(gateway: type) -> Mapping[str, MethodShape]:
    """Return the methods of a gateway Protocol by name, inherited ones included.

    Raises `TypeError`, naming gateway and method, if a member breaks the rule above.
    """
    members: dict[str, object] = {}
    for base in reversed(gateway.__mro__):
        if base not in (object, Protocol, Generic):
            members.update(dict.fromkeys(inspect.get_annotations(base)))
            members.update(vars(base))
    shapes = {
        name: _shape(gateway.__name__, name, member) for name, member in members.items() if not name.startswith("_")
    }
    if not shapes:
        raise TypeError(f"{gateway.__name__} has no methods to call")
    return MappingProxyType(shapes)


def _shape(gateway: str, name: str, member: object) -> MethodShape:
    where = f"{gateway}.{name}"
    if not inspect.iscoroutinefunction(member):
        raise TypeError(f"{where} must be an async method")
    parameters = list(inspect.signature(member).parameters.values())[1:]
    if len(parameters) > 1 or any(p.kind is not p.POSITIONAL_OR_KEYWORD for p in parameters):
        raise TypeError(f"{where} must take one message, or nothing")
    try:
        hints = get_type_hints(member)
    except NameError as error:
        raise TypeError(f"{where} has an annotation that cannot be resolved: {error}") from error
    request: Any = hints.get(parameters[0].name) if parameters else None
    if parameters and not _is_message(_alternatives(request)):
        raise TypeError(f"{where} must take a msgspec Struct or a union of tagged ones, not {_name(request)}")
    if "return" not in hints:
        raise TypeError(f"{where} must declare what it returns")
    response: Any = None if hints["return"] is NoneType else hints["return"]
    structs = tuple(option for option in _alternatives(response) if option is not None)
    if structs and not _is_message(structs):
        raise TypeError(
            f"{where} must return a msgspec Struct, a union of tagged ones, an optional one, or None, "
            f"not {_name(response)}"
        )
    parameter = parameters[0].name if parameters else ""
    return MethodShape(gateway=gateway, name=name, parameter=parameter, request=request, response=response)


def _alternatives(kind: Any) -> tuple[Any, ...]:
    if get_origin(kind) in (Union, UnionType):
        return tuple(None if option is NoneType else option for option in get_args(kind))
    return (kind,)


def _types(kind: Any) -> tuple[type, ...]:
    return tuple(NoneType if option is None else option for option in _alternatives(kind))


def _is_message(options: tuple[Any, ...]) -> bool:
    structs = [option for option in options if isinstance(option, type) and issubclass(option, Struct)]
    return structs == [*options] and (len(structs) == 1 or all(s.__struct_config__.tag is not None for s in structs))


def _name(kind: Any) -> str:
    return " | ".join(getattr(option, "__name__", str(option)) for option in _alternatives(kind))


def proxy(gateway: type[G], place: str, call: Call) -> G:
    """Return an object with the methods of `gateway`, each of which is one `call`. `place` is only for its repr."""
    return cast("G", _proxy_class(gateway)(place, call))


class _Proxy:
    """Base of all proxies."""

    __slots__ = ("_call", "_place")

    def __init__(self, place: str, call: Call) -> None:
        self._place = place
        self._call = call

    def __repr__(self) -> str:
        return f"<{type(self).__name__} at {self._place}>"


@functools.cache
def _proxy_class(gateway: type) -> type[_Proxy]:
    methods = {name: _remote(shape) for name, shape in describe(gateway).items()}
    return type(gateway.__name__, (_Proxy,), {"__slots__": (), "__doc__": gateway.__doc__, **methods})


def _remote(shape: MethodShape) -> Callable[..., Coroutine[Any, Any, Message]]:
    # Not a coroutine function itself: it hands out the carrier's coroutine, which saves a frame on each call.
    def remote(self: _Proxy, message: Message = None, /, **named: Message) -> Coroutine[Any, Any, Message]:
        if named:
            message = named.pop(shape.parameter, None)
            if named or message is None:
                raise TypeError(f"{shape!r} takes one message, {shape.parameter!r}")
        return self._call(shape, message)  # pyright: ignore[reportPrivateUsage]

    remote.__name__ = shape.name
    remote.__qualname__ = repr(shape)
    return remote
