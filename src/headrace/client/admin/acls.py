"""ACLs: list, create, delete."""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum
from typing import NamedTuple, TypedDict, TypeVar

from headrace.client.admin.base import Admin, Failure, raise_failures
from headrace.wire.acls import Operation, Pattern, Permission, Resource
from headrace.wire.api.access import (
    AclCreation,
    AclDescription,
    AclSelection,
    CreateAclsRequest,
    CreateAclsResponse,
    DeleteAclsMatchingAcl,
    DeleteAclsRequest,
    DeleteAclsResponse,
    DescribeAclsRequest,
    DescribeAclsResource,
)

ANY_HOST = "*"

E = TypeVar("E", bound=IntEnum)


class AclBinding(NamedTuple):
    """An ACL: who may, or may not, do what on which resources. The name `*` stands for all of a type."""

    resource: Resource
    name: str
    principal: str
    operation: Operation
    permission: Permission = Permission.ALLOW
    pattern: Pattern = Pattern.LITERAL
    host: str = ANY_HOST

    def as_filter(self) -> AclBindingFilter:
        """Return a filter that matches this ACL only."""
        return AclBindingFilter(
            self.resource, self.name, self.principal, self.operation, self.permission, self.pattern, self.host
        )

    def __str__(self) -> str:
        prefixed = " with prefix" if self.pattern is Pattern.PREFIXED else ""
        verb = "is denied" if self.permission is Permission.DENY else "is permitted"
        host = "" if self.host == ANY_HOST else f" from {self.host}"
        return f"{self.principal} {verb} {self.operation.name} on {self.resource.name}{prefixed} {self.name!r}{host}"


class AclBindingFilter(NamedTuple):
    """Selects ACLs; None and ANY select every value of a field."""

    resource: Resource = Resource.ANY
    name: str | None = None
    principal: str | None = None
    operation: Operation = Operation.ANY
    permission: Permission = Permission.ANY
    pattern: Pattern = Pattern.ANY
    """With MATCH, all ACLs that apply to the resource `name`: literal, prefixed and `*`."""
    host: str | None = None


class AclAdmin(Admin):
    """The ACLs of the cluster."""

    def describe_acls(self, acl_filter: AclBindingFilter | None = None) -> list[AclBinding]:
        """Return the ACLs that match a filter, sorted; all of them without one."""
        response = self.client.request(
            DescribeAclsRequest(**_filter_fields(acl_filter or AclBindingFilter())),
            versions=(1, 3),
            codes=lambda response: [response.error_code],
        )
        raise_failures([Failure("ACLs", response.error_code, response.error_message)])
        return sorted(_binding(resource, acl) for resource in response.resources for acl in resource.acls)

    def create_acls(self, acls: Iterable[AclBinding]) -> None:
        """Create ACLs; those that exist already are kept."""
        acls = list(acls)
        creations = [
            AclCreation(
                resource_type=acl.resource,
                resource_name=acl.name,
                resource_pattern_type=acl.pattern,
                principal=acl.principal,
                host=acl.host,
                operation=acl.operation,
                permission_type=acl.permission,
            )
            for acl in acls
        ]

        def failures(response: CreateAclsResponse) -> list[Failure]:
            return [
                Failure(f"ACL ({acl})", result.error_code, result.error_message)
                for acl, result in zip(acls, response.results, strict=False)
            ]

        self.change(CreateAclsRequest(creations=creations), failures, versions=(1, 3))

    def delete_acls(self, acl_filters: Iterable[AclBindingFilter]) -> list[AclBinding]:
        """Delete the ACLs that match any of the filters, and return them, sorted."""
        filters = [AclSelection(**_filter_fields(acl_filter)) for acl_filter in acl_filters]
        response = self.change(DeleteAclsRequest(filters=filters), _delete_failures, versions=(1, 3))
        return sorted({_binding(acl, acl) for result in response.filter_results for acl in result.matching_acls})


class _FilterFields(TypedDict):
    resource_type_filter: int
    resource_name_filter: str | None
    pattern_type_filter: int
    principal_filter: str | None
    host_filter: str | None
    operation: int
    permission_type: int


def _filter_fields(acl_filter: AclBindingFilter) -> _FilterFields:
    return {
        "resource_type_filter": acl_filter.resource,
        "resource_name_filter": acl_filter.name,
        "pattern_type_filter": acl_filter.pattern,
        "principal_filter": acl_filter.principal,
        "host_filter": acl_filter.host,
        "operation": acl_filter.operation,
        "permission_type": acl_filter.permission,
    }


def _binding(
    resource: DescribeAclsResource | DeleteAclsMatchingAcl, acl: AclDescription | DeleteAclsMatchingAcl
) -> AclBinding:
    return AclBinding(
        _member(Resource, resource.resource_type),
        resource.resource_name,
        acl.principal,
        _member(Operation, acl.operation),
        _member(Permission, acl.permission_type),
        _member(Pattern, resource.pattern_type),
        acl.host,
    )


def _delete_failures(response: DeleteAclsResponse) -> list[Failure]:
    failures = []
    for result in response.filter_results:
        failures.append(Failure("ACLs of a filter", result.error_code, result.error_message))
        failures += [
            Failure(f"ACL ({_binding(acl, acl)})", acl.error_code, acl.error_message) for acl in result.matching_acls
        ]
    return failures


def _member(kind: type[E], number: int) -> E:
    """Return the member of an enum; UNKNOWN for a number that a newer broker has."""
    return kind(number) if number in kind.__members__.values() else kind(0)
