"""What the admin port is made of in tests: a test gives the functions that it is about."""

from typing import Any, NoReturn

from sluicegate.admin.endpoints import AdminDeps


def not_given(*asked: object) -> NoReturn:
    raise AssertionError(f"the test gives no such function, and was asked {asked}")


def admin_deps(**given: Any) -> AdminDeps:
    needed = (
        "describe_servers", "list_tools", "judge_tools", "cost", "change_server", "list_prompts", "list_resources",
        "output", "pins", "blocks", "logins", "approvals", "page", "facts", "explain", "preview", "client_of", "may",
    )  # fmt: skip
    return AdminDeps(**{**dict.fromkeys(needed, not_given), "ready": list, "metrics": None, **given})
