"""Key 51: set SCRAM users."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.wire.schema import Message, Struct, array, bytes_, int8, int16, int32, string


class ScramCredentialDeletion(Struct):
    name: str = string()
    mechanism: int = int8()


class ScramCredentialUpsertion(Struct):
    name: str = string()
    mechanism: int = int8()
    iterations: int = int32()
    salt: bytes = bytes_(secret=True)
    salted_password: bytes = bytes_(secret=True)


class AlterUserScramCredentialsRequest(Message, api_key=51, versions="0-0", flexible="0+"):
    deletions: Sequence[ScramCredentialDeletion] = array(ScramCredentialDeletion)
    upsertions: Sequence[ScramCredentialUpsertion] = array(ScramCredentialUpsertion)


class AlterUserScramCredentialsResult(Struct):
    user: str = string()
    error_code: int = int16()
    error_message: str | None = string(nullable="0+")


class AlterUserScramCredentialsResponse(Message, api_key=51, versions="0-0", flexible="0+"):
    throttle_time_ms: int = int32()
    results: Sequence[AlterUserScramCredentialsResult] = array(AlterUserScramCredentialsResult)
