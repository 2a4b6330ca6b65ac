"""The cases. All of it is made up for this project: patients, trials, drugs, numbers and sources.

None of it is medical knowledge, and none of it may be used for a decision about a person.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

Kind = Literal["answerable", "conflicting", "unanswerable"]


@dataclass(frozen=True, slots=True)
class Case:
    """A question about a few passages, and what a careful reader may say."""

    name: str
    kind: Kind
    question: str
    passages: tuple[str, ...]
    answers: tuple[str, ...] = ()
    """For an answerable one: texts of which the answer has at least one."""
    at_odds: tuple[int, int] = (0, 1)
    """For a conflicting one: the two passages that contradict each other."""


def _answerable(name: str, question: str, answers: tuple[str, ...], *passages: str) -> Case:
    return Case(name, "answerable", question, passages, answers)


def _conflicting(name: str, question: str, *passages: str) -> Case:
    return Case(name, "conflicting", question, passages)


def _unanswerable(name: str, question: str, *passages: str) -> Case:
    return Case(name, "unanswerable", question, passages)


CASES: Final[tuple[Case, ...]] = (
    _answerable(
        "dose-velotrisine",
        "Which daily dose of velotrisine did the second cohort of the HERON study receive?",
        ("40 mg",),
        "HERON was an open study of the invented drug velotrisine. The first cohort received 20 mg a day.",
        "In HERON the second cohort received 40 mg a day after no limiting toxicity had been seen.",
    ),
    _answerable(
        "median-heron",
        "What was the median survival in the HERON study?",
        ("11.2 months",),
        "The HERON report gives a median survival of 11.2 months from diagnosis for its 31 participants.",
        "Headache was the most frequent complaint in HERON and was mild in most participants.",
    ),
    _answerable(
        "stop-rule-plover",
        "At which platelet count did the PLOVER protocol ask to stop quarzolimib?",
        ("50,000", "50000", "50 000"),
        "PLOVER protocol, section 6: quarzolimib is stopped if platelets fall below 50,000 per microlitre.",
        "PLOVER protocol, section 7: treatment may begin again at half the dose once platelets exceed 100,000.",
    ),
    _answerable(
        "mutation-share",
        "In how many of the registry's samples was the K27 marker found?",
        ("52", "fifty-two"),
        "The invented Lantern registry holds 64 biopsy samples. The K27 marker was found in 52 of them.",
        "Samples in the Lantern registry were taken before any radiation was given.",
    ),
    _answerable(
        "steroid-taper",
        "Over how many weeks was dexamethasone tapered in the fictional patient?",
        ("three weeks", "3 weeks"),
        "Fictional patient F-17 improved after radiation, and dexamethasone was tapered over three weeks.",
        "F-17 returned to school for half days in the second month.",
    ),
    _answerable(
        "radiation-total",
        "Which total radiation dose does the guide of the invented Northbay clinic name?",
        ("54 Gy",),
        "The guide of the invented Northbay clinic names a total of 54 Gy in 30 fractions.",
        "Northbay repeats imaging four to six weeks after the last fraction.",
    ),
    _answerable(
        "imaging-interval",
        "How often is imaging repeated in the SWIFT study?",
        ("every eight weeks", "every 8 weeks"),
        "In SWIFT, imaging is repeated every eight weeks, or earlier if new symptoms appear.",
        "SWIFT asks families to keep a diary of sleep and appetite.",
    ),
    _answerable(
        "first-symptom",
        "What was the first symptom of fictional patient F-04?",
        ("double vision",),
        "Fictional patient F-04 first complained of double vision; an unsteady gait followed two weeks later.",
        "The family of F-04 was seen by a social worker on the day of diagnosis.",
    ),
    _answerable(
        "route-nimbrelin",
        "By which route was nimbrelin given in the CURLEW study?",
        ("convection", "catheter"),
        "CURLEW gave nimbrelin straight into the tumour through a catheter, by convection-enhanced delivery.",
        "The catheter stayed in place for 48 hours in each CURLEW participant.",
    ),
    _answerable(
        "participants-teal",
        "How many participants left the TEAL study early?",
        ("four", "4"),
        "TEAL enrolled 28 participants, of whom four left early at their own wish.",
        "No participant of TEAL was replaced.",
    ),
    _conflicting(
        "median-ibis",
        "What was the median survival in the IBIS study?",
        "Report of the IBIS study: median survival was 9.4 months.",
        "Later letter on the IBIS study: median survival was 12.1 months, by the same count from diagnosis.",
    ),
    _conflicting(
        "dose-toravex",
        "What is the highest safe dose of toravex according to these sources?",
        "Dose finding for the invented drug toravex ended at 80 mg, which was declared the highest safe dose.",
        "A review board declared 60 mg the highest safe dose of toravex, from the same participants.",
        "Toravex is a capsule taken with food.",
    ),
    _conflicting(
        "biopsy-risk",
        "Does the invented Larch centre advise a biopsy for typical cases?",
        "Larch centre handbook: a biopsy is advised for every typical case.",
        "Larch centre leaflet, same year: a biopsy is not advised for typical cases.",
    ),
    _conflicting(
        "response-egret",
        "How many EGRET participants had a response on imaging?",
        "EGRET, table 2: a response on imaging was seen in 6 of 20 participants.",
        "EGRET, abstract: a response on imaging was seen in 9 of 20 participants.",
    ),
    _conflicting(
        "steroids-mallorin",
        "May mallorin be given together with dexamethasone?",
        "Label of the invented drug mallorin: it must not be given together with dexamethasone.",
        "Pharmacy note: mallorin may be given together with dexamethasone at any dose.",
    ),
    _conflicting(
        "age-osprey",
        "Up to which age could patients join the OSPREY study?",
        "OSPREY registration entry: patients up to 18 years may join.",
        "OSPREY protocol, version 3: patients up to 21 years may join.",
        "OSPREY had sites in two invented cities.",
    ),
    _conflicting(
        "toxicity-sorrelin",
        "Was liver toxicity seen with sorrelin?",
        "Safety report on the invented drug sorrelin: no liver toxicity was seen.",
        "Site audit of the same sorrelin study: liver toxicity of grade 3 was seen in two participants.",
    ),
    _conflicting(
        "fractions-birch",
        "How many fractions does the invented Birch protocol use?",
        "Birch protocol, summary: radiation is given in 13 fractions.",
        "Birch protocol, appendix: radiation is given in 30 fractions.",
    ),
    _conflicting(
        "relapse-f22",
        "When did fictional patient F-22 relapse?",
        "Discharge letter of F-22: relapse was found five months after radiation.",
        "Imaging report of F-22: relapse was found nine months after radiation.",
    ),
    _conflicting(
        "marker-linnet",
        "Did the marker predict survival in LINNET?",
        "LINNET, main paper: the marker predicted longer survival.",
        "LINNET, correction: the marker did not predict survival once age was accounted for.",
        "LINNET used stored blood samples.",
    ),
    _unanswerable(
        "cost-velotrisine",
        "What does a month of velotrisine cost?",
        "HERON was an open study of velotrisine in fictional diffuse pontine tumours.",
        "Velotrisine was supplied to HERON free of charge by its invented maker.",
    ),
    _unanswerable(
        "adult-dose",
        "Which dose of quarzolimib is right for a patient of 45 years?",
        "PLOVER enrolled patients from 3 to 16 years and gave quarzolimib at 5 mg per kilogram.",
        "No adult has received quarzolimib.",
    ),
    _unanswerable(
        "five-year",
        "What was the five-year survival in the SWIFT study?",
        "SWIFT has followed its participants for 14 months so far.",
        "One-year survival in SWIFT was 41 percent.",
    ),
    _unanswerable(
        "cause-f09",
        "What caused the fever of fictional patient F-09?",
        "Fictional patient F-09 had a fever of 39 degrees on the third day. Cultures were taken.",
        "The results of the cultures of F-09 were pending when the letter was written.",
    ),
    _unanswerable(
        "compare-drugs",
        "Is velotrisine better than quarzolimib?",
        "HERON studied velotrisine in 31 participants without a comparison group.",
        "PLOVER studied quarzolimib in 24 participants without a comparison group.",
    ),
    _unanswerable(
        "pregnancy-toravex",
        "Is toravex safe in pregnancy?",
        "Toravex, an invented drug, was studied in boys and girls under 12 years.",
        "Toravex is a capsule taken with food.",
    ),
    _unanswerable(
        "sister-risk",
        "What is the risk of the same tumour for the sister of fictional patient F-30?",
        "Fictional patient F-30 has a sister of 4 years who is well.",
        "The family of F-30 asked for a talk about their other child.",
    ),
    _unanswerable(
        "dose-nimbrelin",
        "Which dose of nimbrelin did CURLEW give?",
        "CURLEW gave nimbrelin straight into the tumour through a catheter.",
        "The CURLEW paper says that doses will be reported elsewhere.",
    ),
    _unanswerable(
        "vaccine",
        "May patients of the TEAL study receive a live vaccine?",
        "TEAL enrolled 28 participants and gave sorrelin for six months.",
        "The TEAL protocol lists the medicines that must not be combined with sorrelin; vaccines are not mentioned.",
    ),
    _unanswerable(
        "hospital-stay",
        "How long did EGRET participants stay in hospital?",
        "EGRET gave its invented treatment on one day a week for ten weeks.",
        "EGRET counted responses on imaging and side effects.",
    ),
)

BY_NAME: Final = {case.name: case for case in CASES}
