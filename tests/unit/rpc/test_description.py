"""Gateways are read from their Protocols; what breaks the rule is named."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import msgspec
import pytest
from msgspec import Struct

from flintlock.model.errors import InvariantBroken, Refused
from flintlock.rpc.description import Message, MethodShape, describe, proxy

if TYPE_CHECKING:
    from decimal import Decimal as NotAtRunTime


class Question(Struct, frozen=True):
    text: str


class Reply(Struct, frozen=True):
    text: str


class BaseGateway(Protocol):
    async def ping(self) -> None: ...

    async def ask(self, message: Question) -> Reply: ...


class WiderGateway(BaseGateway, Protocol):
    """Adds two methods to what it inherits."""

    # The later one counts, as Python has it.
    async def ask(self, message: Question) -> Reply | None: ...  # pyright: ignore[reportIncompatibleMethodOverride]

    async def tell(self, question: Question) -> None: ...


def test_table_has_request_and_response_of_each_method() -> None:
    table = {name: (shape.request, shape.response) for name, shape in describe(BaseGateway).items()}

    assert table == {"ping": (None, None), "ask": (Question, Reply)}


def test_inherited_methods_belong_to_the_gateway_that_inherits_them() -> None:
    table = describe(WiderGateway)

    assert set(table) == {"ping", "ask", "tell"}
    assert {shape.gateway for shape in table.values()} == {"WiderGateway"}
    assert table["ask"].response == Reply | None


class NotAsync(Protocol):
    def bad(self, message: Question) -> Reply: ...


class TwoArguments(Protocol):
    async def bad(self, first: Question, second: Question) -> Reply: ...


class KeywordOnly(Protocol):
    async def bad(self, *, message: Question) -> Reply: ...


class PlainArgument(Protocol):
    async def bad(self, message: str) -> Reply: ...


class NoAnnotation(Protocol):
    async def bad(self, message) -> Reply: ...  # noqa: ANN001  # pyright: ignore[reportMissingParameterType, reportUnknownParameterType]


class NoReturn(Protocol):
    async def bad(self, message: Question): ...  # noqa: ANN201


class PlainAnswer(Protocol):
    async def bad(self, message: Question) -> list[Reply]: ...


class EitherAnswer(Protocol):
    async def bad(self, message: Question) -> Reply | Question: ...


class EitherQuestion(Protocol):
    async def bad(self, message: Reply | Question) -> None: ...


class OptionalQuestion(Protocol):
    async def bad(self, message: Question | None) -> None: ...


class Unresolvable(Protocol):
    async def bad(self, message: NotAtRunTime) -> Reply: ...


class DataMember(Protocol):
    bad: int


class Property(Protocol):
    @property
    def bad(self) -> int: ...


@pytest.mark.parametrize(
    "gateway",
    [
        NotAsync,
        TwoArguments,
        KeywordOnly,
        PlainArgument,
        NoAnnotation,
        NoReturn,
        PlainAnswer,
        EitherAnswer,
        EitherQuestion,
        OptionalQuestion,
        Unresolvable,
        DataMember,
        Property,
    ],
)
def test_broken_rule_names_the_method(gateway: type) -> None:
    with pytest.raises(TypeError, match=rf"^{gateway.__name__}\.bad "):
        describe(gateway)


class Stop(Struct, frozen=True, tag="stop"):
    now: bool = False


class Go(Struct, frozen=True, tag="go"):
    speed: int = 1


class CommandGateway(Protocol):
    async def command(self, message: Stop | Go) -> Stop | Go | None: ...


def test_union_of_tagged_structs_is_one_message() -> None:
    shape = describe(CommandGateway)["command"]

    for message in (Stop(now=True), Go(speed=3)):
        assert shape.decode_request(shape.encode_request(message)) == message
        assert shape.decode_response(shape.encode_response(message)) == message
    assert shape.decode_response(shape.encode_response(None)) is None
    with pytest.raises(TypeError, match=r"CommandGateway\.command takes Stop \| Go, not Question"):
        shape.encode_request(Question("what?"))
    with pytest.raises(Refused, match=r"cannot read its Stop \| Go: Invalid value 'fly'"):
        shape.decode_request(msgspec.msgpack.encode({"type": "fly"}))


class Empty(Protocol): ...


def test_gateway_without_methods_is_no_gateway() -> None:
    with pytest.raises(TypeError, match="Empty has no methods"):
        describe(Empty)


def test_handler_that_answers_something_else_is_found_out_before_it_travels() -> None:
    shape = describe(BaseGateway)["ask"]

    assert shape.decode_response(shape.encode_response(Reply("yes"))) == Reply("yes")
    for wrong in (None, Question("what?")):
        with pytest.raises(TypeError, match=r"BaseGateway\.ask answers Reply, not"):
            shape.encode_response(wrong)
    assert describe(WiderGateway)["ask"].encode_response(None)


@pytest.mark.parametrize(
    "payload", [b"", b"\xff", b"\xc0", msgspec.msgpack.encode({"text": 1}), b"\x81\xa4text\xa1\xff"]
)
def test_bytes_that_are_not_the_message_are_blamed_on_their_sender(payload: bytes) -> None:
    shape = describe(BaseGateway)["ask"]

    with pytest.raises(Refused, match=r"BaseGateway\.ask cannot read its Question"):
        shape.decode_request(payload)
    with pytest.raises(InvariantBroken, match=r"BaseGateway\.ask is not a Reply"):
        shape.decode_response(payload)


class Recorder:
    def __init__(self) -> None:
        self.calls: list[tuple[str, Message]] = []

    async def call(self, shape: MethodShape, message: Message) -> Message:
        self.calls.append((shape.name, message))
        return None


def run(coroutine: Any) -> None:
    with pytest.raises(StopIteration):
        coroutine.send(None)


def test_proxy_has_the_methods_and_takes_the_message_by_place_or_name() -> None:
    recorder = Recorder()
    gateway = proxy(WiderGateway, "host:1", recorder.call)

    run(gateway.ping())
    run(gateway.tell(Question("a")))
    run(gateway.tell(question=Question("b")))

    assert recorder.calls == [("ping", None), ("tell", Question("a")), ("tell", Question("b"))]
    assert repr(gateway) == "<WiderGateway at host:1>"
    with pytest.raises(TypeError, match="'question'"):
        gateway.tell(message=Question("c"))  # pyright: ignore[reportCallIssue]
    with pytest.raises(AttributeError):
        gateway.shout  # pyright: ignore[reportAttributeAccessIssue]  # noqa: B018
