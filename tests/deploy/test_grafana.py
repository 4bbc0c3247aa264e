# SPDX-License-Identifier: Apache-2.0
"""The dashboard by Grafana's schema, as its own SDK has it: `make check-deploy`."""

import copy
import enum
import inspect
import json
import typing
import unittest


def wrong_types(value, kind, path):
    """Where @value is not of @kind, a type of the schema."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if kind in (object, typing.Any, inspect.Parameter.empty) or (value is None and type(None) in arguments):
        return []
    if origin is typing.Union:
        found = [wrong_types(value, one, path) for one in arguments if one is not type(None)]
        return [] if [] in found else found[0]
    if origin is typing.Literal:
        return [] if value in arguments else [f"{path}: {value!r}"]
    if origin is list:
        if not isinstance(value, list):
            return [f"{path}: no list"]
        return [bad for i, one in enumerate(value) for bad in wrong_types(one, arguments[0], f"{path}[{i}]")]
    if origin is dict:
        return [] if isinstance(value, dict) else [f"{path}: no object"]
    if isinstance(kind, enum.EnumMeta) and not isinstance(value, kind):
        return [] if value in [one.value for one in kind] else [f"{path}: {value!r}"]
    if kind is float:
        kind = (int, float)
    if not isinstance(value, kind):
        return [f"{path}: {type(value).__name__} {value!r}"]
    return of_object(value, path)


def of_object(value, path):
    if not type(value).__module__.startswith("grafana_foundation_sdk.models"):
        return []
    hints = typing.get_type_hints(type(value).__init__)
    return [bad for name, had in vars(value).items() if name in hints
            for bad in wrong_types(had, hints[name], f"{path}.{name}")]


def lost(before, after, path=""):
    """What the schema does not know: it is not there any more when the dashboard is written again."""
    if isinstance(before, dict):
        return [bad for key, value in before.items()
                for bad in (lost(value, after[key], f"{path}/{key}")
                            if isinstance(after, dict) and key in after else [f"{path}/{key}"])]
    if isinstance(before, list):
        return [bad for i, value in enumerate(before)
                for bad in (lost(value, after[i], f"{path}/{i}") if i < len(after) else [f"{path}/{i}"])]
    return [] if before == after else [f"{path}: {before!r}"]


def complaints(document):
    from grafana_foundation_sdk.cog.encoder import JSONEncoder
    from grafana_foundation_sdk.cog.plugins import register_default_plugins
    from grafana_foundation_sdk.models.dashboard import Dashboard
    register_default_plugins()
    dashboard = Dashboard.from_json(copy.deepcopy(document))
    return of_object(dashboard, "dashboard") + lost(document, json.loads(JSONEncoder().encode(dashboard)))


class Grafana(unittest.TestCase):
    def setUp(self):
        with open("deploy/grafana-glake.json", encoding="utf-8") as file:
            self.document = json.load(file)

    def test_schema(self):
        self.assertEqual(complaints(self.document), [])

    def test_what_is_wrong_is_found(self):
        for place, key, value in ((self.document, "titel", "x"), (self.document, "schemaVersion", "39"),
                                  (self.document["panels"][0], "id", "1"),
                                  (self.document["panels"][3]["gridPos"], "width", 4),
                                  (self.document["panels"][0]["targets"][0], "expresion", "up"),
                                  (self.document["templating"]["list"][1], "refresh", "often")):
            with self.subTest(key):
                before = dict(place)
                place[key] = value
                self.assertNotEqual(complaints(self.document), [])
                place.clear()
                place.update(before)

    def test_panels(self):
        from grafana_foundation_sdk.models import units
        known = {value for name, value in vars(units).items() if not name.startswith("_")}
        panels = self.document["panels"]
        self.assertEqual(len({panel["id"] for panel in panels}), len(panels))
        taken = set()
        for panel in panels:
            self.assertIn(panel["fieldConfig"]["defaults"]["unit"], known)
            at = panel["gridPos"]
            cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
            self.assertEqual(cells & taken, set(), panel["title"])
            self.assertLessEqual(at["x"] + at["w"], 24)
            taken |= cells


if __name__ == "__main__":
    unittest.main()
