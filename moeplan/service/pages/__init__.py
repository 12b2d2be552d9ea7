"""Web pages, rendered here: plans, comparisons, placements, jobs and profiles for people.

They show what the API has and ask for the same jobs; one script makes timelines zoom, jobs move and
files upload, and everything else works without it.
"""

from __future__ import annotations

from moeplan.service.pages.comparisons import router as comparisons
from moeplan.service.pages.entrance import router as entrance
from moeplan.service.pages.jobs import router as jobs
from moeplan.service.pages.placements import router as placements
from moeplan.service.pages.plans import router as plans
from moeplan.service.pages.profiles import router as profiles
from moeplan.service.pages.render import problem_page

__all__ = ["ROUTERS", "problem_page"]

ROUTERS = (entrance, profiles, plans, comparisons, placements, jobs)
