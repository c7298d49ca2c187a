"""Budgets: who is notified, and tags."""

import json
from typing import Any

from moto.budgets import urls
from moto.budgets.responses import BudgetsResponse

from .state import Record, table


class LabBudgets(BudgetsResponse):
    def create_budget(self) -> str:
        answer = super().create_budget()
        name = f"arn:aws:budgets::{self._get_param('AccountId')}:budget/{self._get_param('Budget')['BudgetName']}"
        self._tags(name).clear()  # a namesake that was deleted may have left some
        self._add_tags(name, self._get_param("ResourceTags", []))
        return answer

    def describe_subscribers_for_notification(self) -> str:
        budget = self.backend.budgets[self._get_param("AccountId")][self._get_param("BudgetName")]
        wanted: dict[str, Any] = self._get_param("Notification")
        found = [
            subscriber
            for one in budget.notifications
            if all(one.details.get(key) == value for key, value in wanted.items() if key != "NotificationState")
            for subscriber in one.subscribers
        ]
        return json.dumps({"Subscribers": found})

    def list_tags_for_resource(self) -> str:
        tags = self._tags(self._get_param("ResourceARN"))
        return json.dumps({"ResourceTags": [{"Key": key, "Value": value} for key, value in tags.items()]})

    def tag_resource(self) -> str:
        self._add_tags(self._get_param("ResourceARN"), self._get_param("ResourceTags"))
        return "{}"

    def untag_resource(self) -> str:
        for key in self._get_param("ResourceTagKeys"):
            self._tags(self._get_param("ResourceARN")).pop(key, None)
        return "{}"

    def _tags(self, resource: str) -> Record:
        return table(self.backend, "budget_tags").setdefault(resource, {})

    def _add_tags(self, resource: str, tags: list[dict[str, str]]) -> None:
        self._tags(resource).update({tag["Key"]: tag["Value"] for tag in tags})


def install() -> None:
    urls.url_paths["{0}/$"] = LabBudgets.dispatch
