"""ACLs, SCRAM users, delegation tokens and client quotas."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.wire.fields import array, boolean, bytes_, float64, int8, int16, int32, int64, string
from headrace.wire.schema import Message, RequestMessage, Struct

# Key 29: list ACLs.


class AclSelection(Struct):
    resource_type_filter: int = int8()
    resource_name_filter: str | None = string(nullable="0+")
    pattern_type_filter: int = int8("1+", default=3)
    principal_filter: str | None = string(nullable="0+")
    host_filter: str | None = string(nullable="0+")
    operation: int = int8()
    permission_type: int = int8()


class DescribeAclsRequest(
    AclSelection, RequestMessage["DescribeAclsResponse"], api_key=29, versions="0-3", flexible="2+"
):
    """One filter."""


class AclDescription(Struct):
    principal: str = string()
    host: str = string()
    operation: int = int8()
    permission_type: int = int8()


class DescribeAclsResource(Struct):
    resource_type: int = int8()
    resource_name: str = string()
    pattern_type: int = int8("1+", default=3)
    acls: Sequence[AclDescription] = array(AclDescription)


class DescribeAclsResponse(Message, api_key=29, versions="0-3", flexible="2+"):
    throttle_time_ms: int = int32()
    error_code: int = int16()
    error_message: str | None = string(nullable="0+")
    resources: Sequence[DescribeAclsResource] = array(DescribeAclsResource)


# Key 30: create ACLs.


class AclCreation(Struct):
    resource_type: int = int8()
    resource_name: str = string()
    resource_pattern_type: int = int8("1+", default=3)
    principal: str = string()
    host: str = string()
    operation: int = int8()
    permission_type: int = int8()


class CreateAclsRequest(RequestMessage["CreateAclsResponse"], api_key=30, versions="0-3", flexible="2+"):
    creations: Sequence[AclCreation] = array(AclCreation)


class AclCreationResult(Struct):
    error_code: int = int16()
    error_message: str | None = string(nullable="0+")


class CreateAclsResponse(Message, api_key=30, versions="0-3", flexible="2+"):
    throttle_time_ms: int = int32()
    results: Sequence[AclCreationResult] = array(AclCreationResult)


# Key 31: delete ACLs.


class DeleteAclsRequest(RequestMessage["DeleteAclsResponse"], api_key=31, versions="0-3", flexible="2+"):
    filters: Sequence[AclSelection] = array(AclSelection)


class DeleteAclsMatchingAcl(Struct):
    error_code: int = int16()
    error_message: str | None = string(nullable="0+")
    resource_type: int = int8()
    resource_name: str = string()
    pattern_type: int = int8("1+", default=3)
    principal: str = string()
    host: str = string()
    operation: int = int8()
    permission_type: int = int8()


class DeleteAclsFilterResult(Struct):
    error_code: int = int16()
    error_message: str | None = string(nullable="0+")
    matching_acls: Sequence[DeleteAclsMatchingAcl] = array(DeleteAclsMatchingAcl)


class DeleteAclsResponse(Message, api_key=31, versions="0-3", flexible="2+"):
    throttle_time_ms: int = int32()
    filter_results: Sequence[DeleteAclsFilterResult] = array(DeleteAclsFilterResult)


# Key 50: list SCRAM users.


class UserName(Struct):
    name: str = string()


class DescribeUserScramCredentialsRequest(
    RequestMessage["DescribeUserScramCredentialsResponse"], api_key=50, versions="0-0", flexible="0+"
):
    users: Sequence[UserName] | None = array(UserName, nullable="0+")


class CredentialInfo(Struct):
    mechanism: int = int8()
    iterations: int = int32()


class DescribeUserScramCredentialsResult(Struct):
    user: str = string()
    error_code: int = int16()
    error_message: str | None = string(nullable="0+")
    credential_infos: Sequence[CredentialInfo] = array(CredentialInfo)


class DescribeUserScramCredentialsResponse(Message, api_key=50, versions="0-0", flexible="0+"):
    throttle_time_ms: int = int32()
    error_code: int = int16()
    error_message: str | None = string(nullable="0+")
    results: Sequence[DescribeUserScramCredentialsResult] = array(DescribeUserScramCredentialsResult)


# Key 51: create, change and delete SCRAM users.


class ScramCredentialDeletion(Struct):
    name: str = string()
    mechanism: int = int8()


class ScramCredentialUpsertion(Struct):
    name: str = string()
    mechanism: int = int8()
    iterations: int = int32()
    salt: bytes = bytes_(secret=True)
    salted_password: bytes = bytes_(secret=True)


class AlterUserScramCredentialsRequest(
    RequestMessage["AlterUserScramCredentialsResponse"], api_key=51, versions="0-0", flexible="0+"
):
    deletions: Sequence[ScramCredentialDeletion] = array(ScramCredentialDeletion)
    upsertions: Sequence[ScramCredentialUpsertion] = array(ScramCredentialUpsertion)


class AlterUserScramCredentialsResult(Struct):
    user: str = string()
    error_code: int = int16()
    error_message: str | None = string(nullable="0+")


class AlterUserScramCredentialsResponse(Message, api_key=51, versions="0-0", flexible="0+"):
    throttle_time_ms: int = int32()
    results: Sequence[AlterUserScramCredentialsResult] = array(AlterUserScramCredentialsResult)


# Key 48: list quotas.


class ComponentData(Struct):
    entity_type: str = string()
    match_type: int = int8()
    match: str | None = string(nullable="0+")


class DescribeClientQuotasRequest(
    RequestMessage["DescribeClientQuotasResponse"], api_key=48, versions="0-1", flexible="1+"
):
    components: Sequence[ComponentData] = array(ComponentData)
    strict: bool = boolean()


class EntityData(Struct):
    entity_type: str = string()
    entity_name: str | None = string(nullable="0+")


class ValueData(Struct):
    key: str = string()
    value: float = float64()


class EntryData(Struct):
    entity: Sequence[EntityData] = array(EntityData)
    values: Sequence[ValueData] = array(ValueData)


class DescribeClientQuotasResponse(Message, api_key=48, versions="0-1", flexible="1+"):
    throttle_time_ms: int = int32()
    error_code: int = int16()
    error_message: str | None = string(nullable="0+")
    entries: Sequence[EntryData] | None = array(EntryData, nullable="0+")


# Key 49: change quotas.


class OpData(Struct):
    key: str = string()
    value: float = float64()
    remove: bool = boolean()


class EntryDataRequest(Struct):
    entity: Sequence[EntityData] = array(EntityData)
    ops: Sequence[OpData] = array(OpData)


class AlterClientQuotasRequest(RequestMessage["AlterClientQuotasResponse"], api_key=49, versions="0-1", flexible="1+"):
    entries: Sequence[EntryDataRequest] = array(EntryDataRequest)
    validate_only: bool = boolean()


class EntryDataResponse(Struct):
    error_code: int = int16()
    error_message: str | None = string(nullable="0+")
    entity: Sequence[EntityData] = array(EntityData)


class AlterClientQuotasResponse(Message, api_key=49, versions="0-1", flexible="1+"):
    throttle_time_ms: int = int32()
    entries: Sequence[EntryDataResponse] = array(EntryDataResponse)


# Keys 38 to 41: create, renew, expire and describe delegation tokens. v3 tokens for other owners.


class TokenPrincipal(Struct):
    principal_type: str = string()
    principal_name: str = string()


class CreateDelegationTokenRequest(
    RequestMessage["CreateDelegationTokenResponse"], api_key=38, versions="1-3", flexible="2+"
):
    owner_principal_type: str | None = string("3+", nullable="3+")
    owner_principal_name: str | None = string("3+", nullable="3+")
    renewers: Sequence[TokenPrincipal] = array(TokenPrincipal)
    max_lifetime_ms: int = int64()


class CreateDelegationTokenResponse(Message, api_key=38, versions="1-3", flexible="2+"):
    error_code: int = int16()
    principal_type: str = string()
    principal_name: str = string()
    token_requester_principal_type: str = string("3+")
    token_requester_principal_name: str = string("3+")
    issue_timestamp_ms: int = int64()
    expiry_timestamp_ms: int = int64()
    max_timestamp_ms: int = int64()
    token_id: str = string()
    hmac: bytes = bytes_()
    throttle_time_ms: int = int32()


class RenewDelegationTokenRequest(
    RequestMessage["RenewDelegationTokenResponse"], api_key=39, versions="1-2", flexible="2+"
):
    hmac: bytes = bytes_()
    renew_period_ms: int = int64()


class RenewDelegationTokenResponse(Message, api_key=39, versions="1-2", flexible="2+"):
    error_code: int = int16()
    expiry_timestamp_ms: int = int64()
    throttle_time_ms: int = int32()


class ExpireDelegationTokenRequest(
    RequestMessage["ExpireDelegationTokenResponse"], api_key=40, versions="1-2", flexible="2+"
):
    hmac: bytes = bytes_()
    expiry_time_period_ms: int = int64()


class ExpireDelegationTokenResponse(Message, api_key=40, versions="1-2", flexible="2+"):
    error_code: int = int16()
    expiry_timestamp_ms: int = int64()
    throttle_time_ms: int = int32()


class DescribeDelegationTokenRequest(
    RequestMessage["DescribeDelegationTokenResponse"], api_key=41, versions="1-3", flexible="2+"
):
    owners: Sequence[TokenPrincipal] | None = array(TokenPrincipal, nullable="0+")


class DescribedDelegationToken(Struct):
    principal_type: str = string()
    principal_name: str = string()
    token_requester_principal_type: str = string("3+")
    token_requester_principal_name: str = string("3+")
    issue_timestamp: int = int64()
    expiry_timestamp: int = int64()
    max_timestamp: int = int64()
    token_id: str = string()
    hmac: bytes = bytes_()
    renewers: Sequence[TokenPrincipal] = array(TokenPrincipal)


class DescribeDelegationTokenResponse(Message, api_key=41, versions="1-3", flexible="2+"):
    error_code: int = int16()
    tokens: Sequence[DescribedDelegationToken] = array(DescribedDelegationToken)
    throttle_time_ms: int = int32()
