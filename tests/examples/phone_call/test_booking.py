"""What the words say of an appointment."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from examples.phone_call import booking
from examples.phone_call.booking import WEEKDAYS, Request, candidates, read_request, refused, spoken_time
from examples.phone_call.clinic import read_clinic

CLINIC = read_clinic()
HOURS = ("one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve")
QUARTERS = {0: "", 15: " fifteen", 30: " thirty", 45: " forty-five"}


def time_of(heard: str, asked: str = "") -> str:
    return read_request(heard, CLINIC, asked).time


@pytest.mark.parametrize(
    ("heard", "time"),
    [
        ("ten in the morning", "10:00"),
        ("10 in the morning.", "10:00"),
        ("half past nine", "09:30"),
        ("Half past nine, please.", "09:30"),
        ("quarter to ten", "09:45"),
        ("a quarter past ten", "10:15"),
        ("twenty past eleven", "11:20"),
        ("ten to nine", "08:50"),
        ("twenty-five to four", "15:35"),
        ("2:30 pm", "14:30"),
        ("2.30 p.m.", "14:30"),
        ("10 a.m.", "10:00"),
        ("10 AM", "10:00"),
        ("9 o'clock", "09:00"),
        ("nine o'clock in the morning", "09:00"),
        ("at three", "15:00"),
        ("at 8", "08:00"),
        ("around four", "16:00"),
        ("for eleven, please", "11:00"),
        ("by noon", "12:00"),
        ("at midday", "12:00"),
        ("twelve thirty", "12:30"),
        ("one o'clock", "13:00"),
        ("ten thirty", "10:30"),
        ("at ten forty-five", "10:45"),
        ("at 17:30", "17:30"),
        ("five in the afternoon", "17:00"),
        ("at nine in the evening", "21:00"),
        ("12 a.m.", "00:00"),
        ("12 p.m.", "12:00"),
        ("at seven", "19:00"),  # before the first appointment: the other half of the day, which is refused later on
        ("On Tuesday at ten, no, at eleven.", "11:00"),
        ("at eleven, not at ten", "11:00"),
        ("at eleven instead of ten", "11:00"),
        ("I'd like it at ten I guess", "10:00"),
    ],
)
def test_times(heard: str, time: str) -> None:
    assert time_of(heard) == time
    assert time_of(heard.upper()) == time


@pytest.mark.parametrize(
    "heard",
    [
        "",
        "ten",
        "I have two children",
        "for 10 dollars",
        "for ten dollars",
        "about $10",
        "is it around 60 dollars?",
        "for two people",
        "for one",
        "by one of your doctors",
        "book me one",
        "in about ten minutes",
        "for two weeks",
        "at 12 Garden Street",
        "my number is 5 5 5, 0 1 4 2",
        "call me at 5 5 5 0 1 4 2",
        "I need two fillings",
        "for three teeth",
        "this is for Tim Teneleven",
        "at ninety",
        "10:75",
        "29:00",
        "at 99",
    ],
)
def test_numbers_that_are_no_times(heard: str) -> None:
    assert time_of(heard) == ""


@pytest.mark.parametrize(
    ("heard", "time"),
    [("Ten.", "10:00"), ("ten please", "10:00"), ("Three", "15:00"), ("ten dollars", ""), ("Tuesday", "")],
)
def test_a_bare_number_answers_the_question_for_the_time(heard: str, time: str) -> None:
    assert time_of(heard, asked="time") == time
    assert time_of(heard, asked="day") == ""


@given(st.integers(0, 23), st.integers(0, 59))
def test_a_time_in_digits_is_read_back(hour: int, minute: int) -> None:
    half = "am" if hour < 12 else "pm"
    expected = f"{hour:02}:{minute:02}"
    assert time_of(f"on Monday at {(hour - 1) % 12 + 1}:{minute:02} {half}, please") == expected
    if hour > 12:
        assert time_of(f"{hour}:{minute:02}") == expected


@given(st.sampled_from(HOURS), st.sampled_from(list(QUARTERS)), st.sampled_from(("in the morning", "pm", "")))
def test_a_time_in_words_is_read_back(hour: str, minute: int, half: str) -> None:
    number = HOURS.index(hour) + 1
    expected = number % 12 + (12 if half == "pm" else 0)
    if not half:
        expected = number if number >= 8 else number + 12
    assert time_of(f"at {hour}{QUARTERS[minute]} {half}") == f"{expected:02}:{minute:02}"


@given(st.integers(8, 17), st.sampled_from((0, 5, 15, 30, 45, 59)))
def test_what_the_clinic_says_of_a_time_is_understood_as_that_time(hour: int, minute: int) -> None:
    time = f"{hour:02}:{minute:02}"
    assert time_of(f"at {spoken_time(time)}") == time


@given(st.text(max_size=60))
def test_any_words_give_a_request(heard: str) -> None:
    request = read_request(heard, CLINIC, "time")
    assert request.service in ("", *CLINIC.booking.services)
    assert request.day in ("", *WEEKDAYS)
    assert request.time == "" or "00:00" <= request.time <= "23:59"
    assert request.name == ""


@pytest.mark.parametrize(
    ("heard", "day"),
    [
        ("on Tuesday", "Tuesday"),
        ("TUESDAY", "Tuesday"),
        ("Tuesday, no, Wednesday", "Wednesday"),
        ("Wednesday instead of Tuesday", "Wednesday"),
        ("Wednesday, not Tuesday", "Wednesday"),
        ("Wednesday rather than on Tuesday", "Wednesday"),
        ("can I come on Sunday", "Sunday"),
        ("my name is Munday", ""),
        ("someday", ""),
    ],
)
def test_days(heard: str, day: str) -> None:
    assert read_request(heard, CLINIC).day == day


@pytest.mark.parametrize(
    ("heard", "services"),
    [
        ("I'd like a checkup", ["checkup"]),
        ("a check-up please", ["checkup"]),
        ("my teeth cleaned, I mean a cleaning", ["dental cleaning"]),
        ("a filling with the dentist", ["filling"]),
        ("two fillings", ["filling"]),
        ("an eye test", ["eye test"]),
        ("an eye exam", ["eye test"]),
        ("blood work", ["blood test"]),
        ("a test", ["eye test", "blood test"]),
        ("with Doctor Chen", ["eye test"]),
        ("in my kitchen", []),
        ("a flu shot with Doctor Lopez", ["flu shot"]),
        ("with Dr. Lopez", ["checkup", "flu shot", "blood test"]),
        ("with Doctor Carter", ["dental cleaning", "filling"]),
        ("what a lovely day", []),
    ],
)
def test_services(heard: str, services: list[str]) -> None:
    assert candidates(heard, CLINIC) == services
    assert read_request(heard, CLINIC).service == (services[0] if len(services) == 1 else "")


def test_slots_come_together_over_several_sentences() -> None:
    request = Request()
    assert request.missing == "service"
    for heard, missing in [("I'd like a filling", "day"), ("on Monday", "time"), ("Tuesday at ten rather", "name")]:
        request = request.with_(read_request(heard, CLINIC))
        assert request.missing == missing
    request = request.with_(Request(name="Ada Lane"))
    assert request == Request("filling", "Tuesday", "10:00", "Ada Lane")
    assert request.missing == ""


@given(st.builds(Request, *(st.sampled_from(("", "a", "b")) for _ in range(4))), st.builds(Request))
def test_nothing_new_changes_nothing(request: Request, nothing: Request) -> None:
    assert request.with_(nothing) == request
    assert nothing.with_(request) == request


@pytest.mark.parametrize(
    ("request_", "left", "words"),
    [
        (Request("filling", "Sunday", "10:00"), Request("filling", "", "10:00"), "closed on Sunday"),
        (Request("filling", "Saturday", "15:00"), Request("filling", "Saturday"), "on Saturday from 9 in the morning"),
        (Request("filling", "Saturday", "08:00"), Request("filling", "Saturday"), "until 11:30 in the morning"),
        (Request("filling", "", "19:00"), Request("filling"), "from 8 in the morning until 5:30 in the evening"),
        (Request("filling", "Monday", "17:31", "Ada"), Request("filling", "Monday", "", "Ada"), "What time suits you"),
    ],
)
def test_when_nobody_is_there_it_is_refused_and_said_when_there_is(
    request_: Request, left: Request, words: str
) -> None:
    found = refused(request_, CLINIC)
    assert found is not None
    topic, rest = found
    assert words in topic.say
    assert rest == left
    assert refused(rest, CLINIC) is None


@pytest.mark.parametrize("day", CLINIC.booking.days)
def test_first_and_last_appointment_of_each_day_can_be_booked(day: str) -> None:
    hours = CLINIC.booking.days[day]  # type: ignore[index]
    for time in (hours.first, hours.last):
        assert refused(Request("filling", day, time), CLINIC) is None


def test_a_time_that_fits_some_day_waits_for_the_day() -> None:
    assert refused(Request("filling", "", "17:00"), CLINIC) is None
    assert refused(Request("filling", "Monday"), CLINIC) is None
    assert refused(Request(), CLINIC) is None


def test_every_question_says_what_is_missing() -> None:
    request = Request()
    said = []
    for slot, value in zip(booking.SLOTS, ("filling", "Monday", "10:00", "Ada"), strict=True):
        said.append(booking.question(request).say)
        request = dataclasses.replace(request, **{slot: value})
    assert len(set(said)) == 4
    assert "filling" in said[1]
    assert "Monday" in said[2]
    assert booking.confirmation(request, "James Carter").say == (
        "I have booked the filling with Doctor James Carter on Monday at 10 in the morning for Ada."
    )


@pytest.mark.parametrize(
    ("time", "words"),
    [
        ("00:00", "12 in the morning"), ("08:05", "8:05 in the morning"), ("12:00", "12 in the afternoon"),
        ("13:30", "1:30 in the afternoon"), ("17:00", "5 in the evening"), ("21:15", "9:15 in the evening"),
    ],
)  # fmt: skip
def test_times_are_spoken(time: str, words: str) -> None:
    assert spoken_time(time) == words
