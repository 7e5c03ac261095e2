"""Video: what ffprobe and ffmpeg are told, and what is made of what they say; by stand-ins, which every machine has."""

from __future__ import annotations

import io
import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image as Pillow

from localllm.errors import InvalidRequestError, LocalLLMError, MediaError, MissingPackageError
from localllm.media.limits import MediaLimits
from localllm.media.probing import demuxer_of
from localllm.media.video import load_video, video_of

pytestmark = pytest.mark.usefixtures("leaves_nothing")
MP4 = b"\0\0\0\x18ftypisom" + bytes(100)

# Notes what it is told, what the file holds that it is handed and its process, and does what it is to do.
STAND_IN = """#!/bin/sh
cd {folder}
echo $$ > {name}.pid
printf '%s\\n' "$@" > {name}.told
while [ "$1" != -i ]; do shift; done
/bin/cat "${{2#file:}}" > {name}.seen
{action}
"""


class Programs:
    """A folder that is the whole PATH, with programs that do as they are told here."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def put(self, name: str, action: str) -> None:
        path = self.folder / name
        path.write_text(STAND_IN.format(folder=self.folder, name=name, action=action))
        path.chmod(0o755)

    def say(self, name: str, output: bytes, errors: bytes = b"", status: int = 0) -> None:
        (self.folder / f"{name}.out").write_bytes(output)
        (self.folder / f"{name}.err").write_bytes(errors)
        self.put(name, f"/bin/cat {name}.err >&2\n/bin/cat {name}.out\nexit {status}")

    def report(self, *, seconds: object = "2.0", rotation: object = None, **stream: object) -> None:
        stream = {"width": 4, "height": 2, "duration": seconds, **stream}
        if rotation is not None:
            stream["side_data_list"] = [{"side_data_type": "Display Matrix"}, {"rotation": rotation}]
        self.say("ffprobe", json.dumps({"programs": [], "streams": [stream], "format": {}}).encode())

    def told(self, name: str) -> list[str]:
        return (self.folder / f"{name}.told").read_text().splitlines()

    def seen(self, name: str) -> bytes:
        return (self.folder / f"{name}.seen").read_bytes()

    def runs(self, name: str) -> bool:
        try:
            os.kill(int((self.folder / f"{name}.pid").read_text()), 0)
        except ProcessLookupError:
            return False
        return True


@pytest.fixture
def programs(tmp_path, monkeypatch) -> Programs:
    """ffprobe knows of 4 x 2 pixels for two seconds, and ffmpeg gives two frames of them."""
    folder = tmp_path / "programs"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    made = Programs(folder)
    made.report()
    made.say("ffmpeg", bytes(range(48)))
    return made


def value_of(told: list[str], option: str) -> str:
    return told[told.index(option) + 1]


# ---- what comes out


def test_frames_are_what_ffmpeg_writes_at_the_times_that_were_asked_for(programs):
    video = load_video(MP4)
    assert video.seconds == (0.0, 1.0)
    assert [frame.pixels.tobytes() for frame in video.frames] == [bytes(range(24)), bytes(range(24, 48))]
    assert all(frame.frame and frame.pixels.shape == (2, 4, 3) for frame in video.frames)


def test_both_programs_see_the_file_however_it_is_given(programs, tmp_path):
    path = tmp_path / "-i concat:video.mp4"
    path.write_bytes(MP4)
    for source in (MP4, path, str(path), path.as_uri(), io.BytesIO(MP4)):
        assert len(load_video(source).frames) == 2
        assert programs.seen("ffprobe") == programs.seen("ffmpeg") == MP4


@pytest.mark.parametrize("program", ["ffprobe", "ffmpeg"])
def test_they_may_open_nothing_but_the_file_they_are_handed(programs, program):
    load_video(MP4, MediaLimits(max_pixels=12_345))
    told = programs.told(program)
    assert value_of(told, "-i").startswith("file:/dev/fd/") and value_of(told, "-i")[13:].isdecimal()
    before_input = told[: told.index("-i")]
    assert value_of(before_input, "-protocol_whitelist") == "file,pipe"
    assert value_of(before_input, "-format_whitelist") == value_of(before_input, "-f") == "mov"
    assert value_of(before_input, "-max_pixels") == "12345"
    assert told.count("-i") == 1


def test_what_ffmpeg_is_told(programs):
    load_video(MP4, MediaLimits(max_frames=7), frames_per_second=2.5)
    told = programs.told("ffmpeg")
    assert "-nostdin" in told and "-xerror" in told
    assert value_of(told, "-vf") == "setpts=PTS-STARTPTS,fps=5/2:round=up,scale=4:2"
    assert value_of(told, "-frames:v") == "8"
    assert told[-5:] == ["-f", "rawvideo", "-pix_fmt", "rgb24", "pipe:1"]


def test_reports_are_not_written_because_the_environment_says_so(programs, monkeypatch):
    monkeypatch.setenv("FFREPORT", "file=report.log")
    programs.put("ffmpeg", 'test -z "$FFREPORT" && /bin/cat ffmpeg.out')
    assert len(load_video(MP4).frames) == 2


@pytest.mark.parametrize(
    "rate, shown", [(1, "1"), (0.5, "1/2"), (29.97, "2997/100"), (30000 / 1001, "30000/1001"), (0.001, "1/1000")]
)
def test_rates(programs, rate, shown):
    programs.report(seconds="N/A")
    video = load_video(MP4, frames_per_second=rate)
    assert video.seconds[1] == pytest.approx(1 / rate, rel=1e-5)
    assert f"fps={shown}:" in value_of(programs.told("ffmpeg"), "-vf")


@pytest.mark.parametrize("rotation, turned", [(0, False), (90, True), (-90, True), (180, False), (270, True), ("x", False)])
def test_a_video_that_is_shown_turned(programs, rotation, turned):
    programs.report(rotation=rotation)
    expected = (4, 2) if turned else (2, 4)
    assert load_video(MP4).frames[0].pixels.shape[:2] == expected
    programs.report(tags={"rotate": str(rotation)})
    assert load_video(MP4).frames[0].pixels.shape[:2] == expected


@pytest.mark.parametrize("width, height", [(4000, 3000), (32_000, 4), (1, 30_000), (1000, 1000), (101, 100)])
def test_large_frames_are_scaled_down_to_what_is_allowed(programs, width, height):
    programs.report(width=width, height=height, seconds=None)
    programs.say("ffmpeg", b"")
    with pytest.raises(MediaError, match="holds no frame"):
        load_video(MP4, MediaLimits(max_frame_pixels=10_000))
    scaled = [int(side) for side in value_of(programs.told("ffmpeg"), "-vf").rpartition("scale=")[2].split(":")]
    assert 1 <= scaled[0] * scaled[1] <= 10_000
    assert scaled[0] * scaled[1] > 4_000 or min(scaled) == 1


# ---- limits


@pytest.mark.parametrize(
    "limits, said",
    [
        ({"max_pixels": 7}, r"4 x 2 has more than 7 pixels \(max_pixels\)"),
        ({"max_side_pixels": 3}, r"4 x 2 is longer than 3 \(max_side_pixels\)"),
        ({"max_frames": 1}, r"has 2 frames or more, and 1 are allowed \(max_frames\)"),
        ({"max_total_pixels": 15}, "all frames together have more than the 15 pixels of max_total_pixels"),
        ({"max_bytes": 50}, r"has 112 bytes or more, and at most 50 are allowed \(max_bytes\)"),
    ],
)
def test_every_limit_is_named(programs, tmp_path, limits, said):
    path = tmp_path / "video"
    path.write_bytes(MP4)
    for source in (MP4, path):
        with pytest.raises(MediaError, match=f"^part: {said}"):
            load_video(source, MediaLimits(**limits), "part")


def test_what_a_file_says_to_be_too_long_is_not_decoded(programs):
    programs.report(seconds="1000000000000")
    with pytest.raises(MediaError, match="max_frames"):
        load_video(MP4)
    assert not (programs.folder / "ffmpeg.told").exists()


@pytest.mark.parametrize("limits", [{"max_frames": 5}, {"max_total_pixels": 40}])
def test_frames_without_end_are_cut_off_and_ffmpeg_is_gone(programs, limits):
    programs.put("ffmpeg", "exec /bin/cat /dev/zero")
    with pytest.raises(MediaError, match=next(iter(limits))):
        load_video(MP4, MediaLimits(**limits))
    assert not programs.runs("ffmpeg")


@pytest.mark.parametrize("program", ["ffprobe", "ffmpeg"])
@pytest.mark.parametrize("action", ["exec /bin/sleep 60", "exec /bin/cat /dev/zero >&2", "exec >&- 2>&- /bin/sleep 60"])
def test_a_program_that_does_not_end_is_ended(programs, program, action):
    programs.put(program, action)
    with pytest.raises(MediaError, match=r"^part: was not decoded after 0.3 seconds; .*decode_seconds"):
        load_video(MP4, MediaLimits(decode_seconds=0.3), "part")
    assert not programs.runs(program)


def test_a_report_without_end_is_cut_off(programs):
    programs.put("ffprobe", "exec /bin/cat /dev/zero")
    with pytest.raises(MediaError, match="ffprobe says more of it than makes sense"):
        load_video(MP4)
    assert not programs.runs("ffprobe")


# ---- damage


@pytest.mark.parametrize("program", ["ffprobe", "ffmpeg"])
def test_what_a_failing_program_says_is_told_in_short(programs, program):
    programs.say(program, b"", b"x" * 100_000 + b"\n\xffmoov atom\n not found\n", status=3)
    with pytest.raises(
        MediaError, match=r"^part: this video is damaged or cut short \(x+ .moov atom not found\); give"
    ) as caught:
        load_video(MP4, name="part")
    assert len(str(caught.value)) < 500


def test_half_a_frame_at_the_end_is_an_error(programs):
    programs.say("ffmpeg", bytes(47))
    with pytest.raises(MediaError, match="ends in the middle of a frame"):
        load_video(MP4)


@pytest.mark.parametrize(
    "report",
    [
        *(b"", b"{}", b"[]", b"null", b"{", b'{"streams": []}', b'{"streams": [3]}', b'{"streams": 3}', b"\xff", b"[" * 60_000),
        *(
            b'{"streams": [{"width": 4}]}',
            b'{"streams": [{"width": "x", "height": 2}]}',
            b'{"streams": [{"width": 1e999, "height": 2}]}',
        ),
        *(b'{"streams": [{"width": 0, "height": 0}]}', b'{"streams": [{"width": -4, "height": -2}]}'),
    ],
)
def test_a_report_that_makes_no_sense_is_an_error(programs, report):
    programs.say("ffprobe", report)
    with pytest.raises(MediaError, match="^part: .*; convert it"):
        load_video(MP4, name="part")


@pytest.mark.parametrize(
    "odd", [{"tags": 3}, {"side_data_list": 3}, {"side_data_list": [3]}, {"duration": "-1"}, {"duration": {}}]
)
def test_what_else_makes_no_sense_in_a_report_does_not_matter(programs, odd):
    programs.say("ffprobe", json.dumps({"streams": [{"width": 4, "height": 2, **odd}], "format": 3}).encode())
    assert len(load_video(MP4).frames) == 2


@pytest.mark.parametrize(
    "data",
    [
        b"#EXTM3U\n#EXT-X-TARGETDURATION:10\n#EXTINF:10,\nfile:///etc/passwd\n",
        b"ffconcat version 1.0\nfile /etc/passwd\n",
        b"<?xml version='1.0'?><MPD/>",
        b"v=0\r\no=- 0 0 IN IP4 127.0.0.1\r\n",
        b"YUV4MPEG2 W4 H2",
        b"RIFF\0\0\0\0WAVE",
        b"x",
    ],
)
def test_playlists_and_the_like_come_to_no_program(programs, data):
    with pytest.raises(MediaError, match="^part: is no MP4, "):
        load_video(data, name="part")
    assert not (programs.folder / "ffprobe.told").exists()


@pytest.mark.parametrize(
    "head, demuxer",
    [
        (b"\0\0\0\x18ftypmp42", "mov"),
        (b"\0\0\0\x08wide\0\0\0\0mdat", "mov"),
        (b"\x1a\x45\xdf\xa3\0", "matroska"),
        (b"RIFF\0\0\0\0AVI LIST", "avi"),
        (b"GIF89a", "gif"),
        (b"\x47" + bytes(187) + b"\x47", "mpegts"),
        (b"\x47" + bytes(187), None),
        (b"", None),
    ],
)
def test_the_first_bytes_say_what_it_is(head, demuxer):
    assert demuxer_of(head) == demuxer


@pytest.mark.parametrize("rate", [0, -1, 0.0001, 241, float("nan"), float("inf"), "1", None, True])
def test_a_rate_that_is_none_is_an_error(rate):
    with pytest.raises(InvalidRequestError, match="^frames_per_second: "):
        load_video(MP4, frames_per_second=rate)


# ---- with and without the programs


@pytest.mark.parametrize("missing", ["ffprobe", "ffmpeg"])
def test_without_a_program_it_says_what_to_install(programs, missing):
    (programs.folder / missing).unlink()
    with pytest.raises(MissingPackageError, match=r"^part: video needs the programs ffmpeg and ffprobe; install ffmpeg"):
        load_video(MP4, name="part")


def test_a_program_that_cannot_be_started_is_an_error(programs):
    (programs.folder / "ffprobe").write_bytes(b"\x7fELF nonsense")
    with pytest.raises(MediaError, match="ffprobe cannot be started"):
        load_video(MP4)


def test_with_what_this_machine_has(pillow_bytes, tmp_path):
    """The programs themselves, where they are installed; elsewhere, that they are asked for."""
    shades = [Pillow.new("L", (64, 48), 10 * number) for number in range(20)]
    animation = pillow_bytes(shades[0], "GIF", save_all=True, append_images=shades[1:], duration=100)
    if not (shutil.which("ffmpeg") and shutil.which("ffprobe")):
        with pytest.raises(MissingPackageError):
            load_video(animation)
        return
    video = load_video(animation, frames_per_second=2)
    assert video.seconds == (0.0, 0.5, 1.0, 1.5)
    assert [round(frame.pixels.mean()) for frame in video.frames] == [0, 50, 100, 150]
    assert load_video(animation, MediaLimits(max_frame_pixels=100)).frames[0].pixels.shape == (8, 11, 3)
    for data in (animation[:500], MP4, b"\x1a\x45\xdf\xa3" + bytes(500), b"RIFF\0\0\0\0AVI " + bytes(500)):
        with pytest.raises(MediaError, match="^part: "):
            load_video(data, MediaLimits(max_pixels=1000) if data == animation[:500] else MediaLimits(), "part")


# ---- pictures with their times


def test_pictures_with_their_times_make_a_video(pillow_bytes, gradient):
    video = video_of([gradient, pillow_bytes(gradient), Pillow.fromarray(gradient)], [0, 0.5, np.float32(0.5)])
    assert video.seconds == (0.0, 0.5, 0.5)
    assert len({frame.digest for frame in video.frames}) == 1 and all(frame.frame for frame in video.frames)


@pytest.mark.parametrize(
    "frames, seconds, said",
    [
        ([], [], "part: 0 frames and 0 times"),
        ([b"x"], [], "part: 1 frames and 0 times"),
        ([b"x"], [0, 1], "part: 1 frames and 2 times"),
        ([b"x"] * 2, [1, 0.5], r"part.seconds\[1\]: 0.5 comes before"),
        ([b"x"], [-1], r"part.seconds\[0\]: -1 comes before 0"),
        ([b"x"], [float("nan")], r"part.seconds\[0\]: nan is no number"),
        ([b"x"], ["0"], r"part.seconds\[0\]: '0' is no number"),
        ([b"x"], [True], r"part.seconds\[0\]: True is no number"),
        ("xy", [0, 1], "part: the frames and their seconds have to be lists"),
        ([b"x"], 0, "part: the frames and their seconds have to be lists"),
        ([b"x"], [0], r"part.frames\[0\]: is no PNG"),
        ([b"x"] * 257, [0] * 257, r"part: has 257 frames or more, .*max_frames"),
    ],
)
def test_pictures_that_make_no_video(frames, seconds, said):
    with pytest.raises(LocalLLMError, match=f"^{said}"):
        video_of(frames, seconds, name="part")


def test_pictures_are_bounded_together(gradient):
    assert len(video_of([gradient] * 2, [0, 1], MediaLimits(max_total_pixels=48)).frames) == 2
    with pytest.raises(MediaError, match="^part: all frames together have more than the 47 pixels"):
        video_of([gradient] * 2, [0, 1], MediaLimits(max_total_pixels=47), "part")
