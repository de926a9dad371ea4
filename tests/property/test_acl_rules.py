"""The ACL index returns the same decisions as a plain implementation of Kafka's rules, after any
changes of ACLs.
"""

from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.base.acls import WILDCARD, Operation, PatternType, Permission, ResourceType
from penstock.base.principal import USER, Principal
from penstock.controller.metadata.acl_index import SUPPORTED, AclIndex
from penstock.controller.metadata.records import AclEntry

NAMES = ("a", "ab", "abc", "b", "*", "ba")
PRINCIPALS = ("User:x", "User:y", "User:*")
HOSTS = ("10.0.0.1", "10.0.0.2", "*")
OPERATIONS = (
    Operation.ALL,
    Operation.READ,
    Operation.WRITE,
    Operation.DELETE,
    Operation.ALTER,
    Operation.DESCRIBE,
    Operation.ALTER_CONFIGS,
    Operation.DESCRIBE_CONFIGS,
)
TYPES = (ResourceType.TOPIC, ResourceType.GROUP)
IMPLYING = {
    Operation.DESCRIBE: (Operation.READ, Operation.WRITE, Operation.DELETE, Operation.ALTER),
    Operation.DESCRIBE_CONFIGS: (Operation.ALTER_CONFIGS,),
}

acls = st.builds(
    AclEntry,
    st.sampled_from(TYPES).map(int),
    st.sampled_from((PatternType.LITERAL, PatternType.PREFIXED)).map(int),
    st.sampled_from(NAMES),
    st.sampled_from(PRINCIPALS),
    st.sampled_from(HOSTS),
    st.sampled_from(OPERATIONS).map(int),
    st.sampled_from((Permission.ALLOW, Permission.DENY)).map(int),
)
questions = st.tuples(
    st.sampled_from(("x", "y", "z")),
    st.sampled_from(("10.0.0.1", "10.0.0.2", "10.0.0.3")),
    st.sampled_from(OPERATIONS[1:]),
    st.sampled_from(TYPES),
    st.sampled_from(("a", "ab", "abcd", "b", "c", "*", "hardcode")),
)


def covers(acl: AclEntry, name: str) -> bool:
    if acl.pattern_type == PatternType.PREFIXED:
        return name.startswith(acl.resource_name)
    return acl.resource_name in (name, WILDCARD)


def allowed(
    known: Sequence[AclEntry],
    question: tuple[str, str, Operation, ResourceType, str],
    *,
    default: bool,
) -> bool:
    user, host, operation, resource_type, name = question
    if user == "z":
        return True  # the super user
    of_resource = [acl for acl in known if acl.resource_type == resource_type and covers(acl, name)]
    if not of_resource:
        return default
    mine = [
        acl
        for acl in of_resource
        if acl.principal in (f"User:{user}", "User:*") and acl.host in (host, "*")
    ]
    for acl in mine:
        if acl.permission == Permission.DENY and acl.operation in (operation, Operation.ALL):
            return False
    return any(
        acl.permission == Permission.ALLOW
        and acl.operation in (operation, Operation.ALL, *IMPLYING.get(operation, ()))
        for acl in mine
    )


def allowed_any(
    known: Sequence[AclEntry],
    question: tuple[str, str, Operation, ResourceType, str],
    *,
    default: bool,
) -> bool:
    """Kafka checks one fixed resource name, and then whether an ALLOW remains that no
    DENY covers.
    """
    user, host, operation, resource_type, _ = question
    probe = user, host, operation, resource_type, "hardcode"
    if allowed(known, probe, default=default):
        return True
    mine = [
        acl
        for acl in known
        if acl.resource_type == resource_type
        and acl.principal in (f"User:{user}", "User:*")
        and acl.host in (host, "*")
        and acl.operation in (operation, Operation.ALL)
    ]
    denials = [acl for acl in mine if acl.permission == Permission.DENY]
    if any(acl.pattern_type == PatternType.LITERAL and acl.resource_name == "*" for acl in denials):
        return False
    for acl in mine:
        if acl.permission != Permission.ALLOW:
            continue
        if acl.pattern_type == PatternType.LITERAL and acl.resource_name == WILDCARD:
            return True
        if not any(
            acl.resource_name.startswith(denial.resource_name)
            if denial.pattern_type == PatternType.PREFIXED
            else denial.resource_name == acl.resource_name
            and denial.pattern_type == acl.pattern_type
            for denial in denials
        ):
            return True
    return False


@settings(max_examples=300)
@given(st.lists(st.tuples(st.booleans(), acls), max_size=24), st.lists(questions), st.booleans())
def test_the_index_decides_like_the_plain_rules(
    changes: list[tuple[bool, AclEntry]],
    requested: list[tuple[str, str, Operation, ResourceType, str]],
    default: bool,
) -> None:
    index = AclIndex(super_users={"User:z"}, allows_without_acl=default)
    known: list[AclEntry] = []
    for is_added, acl in [*changes, (True, changes[0][1]) if changes else (False, None)]:
        if acl is None:
            continue
        if is_added:
            index.add(acl)
            known = [*(item for item in known if item != acl), acl]
        else:
            index.remove(acl)
            known = [item for item in known if item != acl]
        for question in requested:
            user, host, operation, resource_type, name = question
            principal = Principal(USER, user)
            for _ in range(2):  # the second decision is cached
                assert index.allows(principal, host, operation, resource_type, name) is allowed(
                    known, question, default=default
                ), question
                assert index.allows_any(principal, host, operation, resource_type) is allowed_any(
                    known, question, default=default
                ), question
            assert index.operations(principal, host, resource_type, name) == sum(
                1 << int(each)
                for each in SUPPORTED[resource_type]
                if allowed(known, (user, host, each, resource_type, name), default=default)
            ), question
    assert set(index) == set(known)
