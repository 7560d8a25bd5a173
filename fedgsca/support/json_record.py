"""Frozen dataclasses that know their JSON form: strict when written, tolerant when read.

    @dataclass(frozen=True)
    class Person(Record):
        name: str
        origin: str = field(metadata=stored_as("from"))
        age: int | None = None  # a default of None: the key is left out if there is no value

Hints are bool, int, float, str, Any, other records, tuple[X, ...], Mapping[str, X], and X | None;
any other hint is refused when the record is first used. A field with the metadata REMAINING_KEYS
holds the keys of the JSON object that no other field has.

`to_json` checks every value against its type hint, so that a wrong value fails where it is written.
Values of remaining keys are written as they are; their keys must not be those of other fields.
`from_json` accepts what unfinished runs and damaged files contain: unknown keys are ignored, and a
key that is missing or has the wrong type gets the field's default, or else the empty value of its
type (NaN for a float, 0, "", an empty tuple, mapping or record).
"""

from __future__ import annotations

import dataclasses
import math
import types
import typing
from collections.abc import Mapping
from typing import Any, Self, Union

_KEY, _REMAINDER = "json key", "json remainder"

# metadata of a mapping field that holds all keys of the JSON object that no other field has
REMAINING_KEYS: Mapping[str, object] = {_REMAINDER: True}


def stored_as(key: str) -> dict[str, object]:
    """Metadata of a field whose JSON key is not a legal or not a good name in Python."""
    return {_KEY: key}


class _MismatchError(ValueError):
    """A JSON value that does not fit the type hint."""


@dataclasses.dataclass(frozen=True)
class Record:
    """Base of the records; adds the two conversions."""

    def to_json(self) -> dict[str, Any]:
        """The record as plain dicts, lists and numbers. Raises TypeError for a wrong value."""
        tree: dict[str, Any] = {}
        remainder: Mapping[str, Any] = {}
        own_keys = set()
        for field, kind in _typed_fields(type(self)):
            value = getattr(self, field.name)
            if field.metadata.get(_REMAINDER):
                remainder = value
                continue
            own_keys.add(_key_of(field))
            if value is not None or field.default is not None:
                place = f"{type(self).__name__}.{field.name}"
                tree[_key_of(field)] = _encode(kind, value, place)
        collisions = sorted(own_keys & set(remainder))
        if collisions:
            raise TypeError(f"{type(self).__name__} has fields of its own for {collisions}")
        return {**tree, **remainder}

    @classmethod
    def from_json(cls, tree: object) -> Self:
        """The record of a JSON object; never fails, see the module docstring."""
        remainder = dict(tree) if isinstance(tree, Mapping) else {}
        values: dict[str, Any] = {}
        remainder_name: str | None = None
        for field, kind in _typed_fields(cls):
            if field.metadata.get(_REMAINDER):
                remainder_name = field.name
                continue
            key = _key_of(field)
            if key in remainder:
                try:
                    values[field.name] = _decode(kind, remainder.pop(key))
                    continue
                except _MismatchError:
                    pass
            if _is_required(field):
                values[field.name] = _empty(kind)
        if remainder_name is not None:
            values[remainder_name] = remainder
        return cls(**values)


_TypedFields = tuple[tuple[dataclasses.Field[Any], Any], ...]
_CACHE: dict[type[Record], _TypedFields] = {}  # resolving type hints is slow


def _typed_fields(cls: type[Record]) -> _TypedFields:
    if cls not in _CACHE:
        hints = typing.get_type_hints(cls)
        for field in dataclasses.fields(cls):
            if not field.metadata.get(_REMAINDER):
                _check_hint(hints[field.name], f"{cls.__name__}.{field.name}")
        _CACHE[cls] = tuple((field, hints[field.name]) for field in dataclasses.fields(cls))
    return _CACHE[cls]


def _check_hint(kind: Any, place: str) -> None:
    """Refuse a type hint that cannot be written and read without losing something."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    inner: tuple[Any, ...] = ()
    if origin in (Union, types.UnionType):
        inner = tuple(argument for argument in arguments if argument is not type(None))
        is_supported = len(inner) == 1
    elif origin is tuple:
        inner = arguments[:1]
        is_supported = arguments[1:] == (Ellipsis,)
    elif origin is Mapping:
        inner = arguments[1:]
        is_supported = arguments[0] is str
    else:
        is_record = isinstance(kind, type) and issubclass(kind, Record)
        is_supported = is_record or kind in (Any, bool, int, float, str)
    if not is_supported:
        raise TypeError(f"{place} has the type hint {kind}, which JSON records do not support")
    for argument in inner:
        _check_hint(argument, place)


def _key_of(field: dataclasses.Field[Any]) -> str:
    return str(field.metadata.get(_KEY, field.name))


def _is_required(field: dataclasses.Field[Any]) -> bool:
    missing = dataclasses.MISSING
    return field.default is missing and field.default_factory is missing


def _is_scalar(kind: Any, value: object) -> bool:
    """Whether the value is one of this type. An int is also a float, a bool is only a bool."""
    if isinstance(value, bool):
        return kind is bool
    if kind is float:
        return isinstance(value, int | float)
    return isinstance(value, kind)


def _encode(kind: Any, value: Any, place: str) -> Any:
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if kind is Any:
        return value
    if origin in (Union, types.UnionType):
        if value is None and type(None) in arguments:
            return None
        return _encode(_first_kind(arguments), value, place)
    if origin is tuple and isinstance(value, tuple):
        return [_encode(arguments[0], item, place) for item in value]
    if origin is Mapping and isinstance(value, Mapping):
        return {key: _encode(arguments[1], item, place) for key, item in value.items()}
    if origin is None and isinstance(value, Record) and isinstance(value, kind):
        return value.to_json()
    if origin is None and _is_scalar(kind, value):
        return value
    raise TypeError(f"{place} is {value!r}, which does not fit {kind}")


def _decode(kind: Any, value: Any) -> Any:
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if kind is Any:
        return value
    if origin in (Union, types.UnionType):
        if value is None:
            return None
        return _decode(_first_kind(arguments), value)
    if origin is tuple and isinstance(value, list):
        return tuple(_decode(arguments[0], item) for item in value)
    if origin is Mapping and isinstance(value, Mapping):
        return {key: _decode(arguments[1], item) for key, item in value.items()}
    if origin is None and issubclass(kind, Record) and isinstance(value, Mapping):
        return kind.from_json(value)
    if origin is None and _is_scalar(kind, value):
        return value
    raise _MismatchError


def _first_kind(arguments: tuple[Any, ...]) -> Any:
    """The type beside None of an optional field."""
    return next(kind for kind in arguments if kind is not type(None))


def _empty(kind: Any) -> Any:
    origin = typing.get_origin(kind)
    if kind is Any or origin in (Union, types.UnionType):
        return None
    if origin is Mapping:
        return {}
    if kind is float:
        return math.nan
    if origin is None and issubclass(kind, Record):
        return kind.from_json({})
    return (origin or kind)()
