"""Sound: every kind that is read, mixed and resampled right, and that which means no good."""

from __future__ import annotations

import io
import struct
import sys

import numpy as np
import pytest
import soundfile

from localllm.errors import InvalidRequestError, MediaError, MissingPackageError
from localllm.media.lengths import missing_bytes
from localllm.media.limits import MediaLimits
from localllm.media.sound import load_audio

WAV_KINDS = ["PCM_U8", "PCM_16", "PCM_24", "PCM_32", "FLOAT", "DOUBLE", "ULAW", "ALAW"]


def encoded(samples, rate: int, kind: str = "WAV", subtype: str | None = None) -> bytes:
    data = io.BytesIO()
    soundfile.write(data, samples, rate, format=kind, subtype=subtype)
    return data.getvalue()


def wav(samples: bytes, rate: int = 16_000, channels: int = 1, bits: int = 16, size: int | None = None, code: int = 1) -> bytes:
    """A WAV file of which every word is told."""
    width = channels * bits // 8
    form = struct.pack("<HHIIHH", code, channels, rate, rate * width & 0xFFFFFFFF, width & 0xFFFF, bits)
    data = b"fmt " + struct.pack("<I", len(form)) + form
    data += b"data" + struct.pack("<I", len(samples) if size is None else size) + samples
    return b"RIFF" + struct.pack("<I", 4 + len(data)) + b"WAVE" + data


def mp3(table: bytes) -> bytes:
    """What begins like an MP3 file whose first frame holds a table; 1,000 bytes."""
    return (b"\xff\xfb" + bytes(34) + table).ljust(1000, b"\0")


def sine(hertz: float, rate: int, seconds: float = 1.0) -> np.ndarray:
    return 0.5 * np.sin(2 * np.pi * hertz * np.arange(int(rate * seconds)) / rate)


def spectrum(audio) -> tuple[np.ndarray, np.ndarray]:
    """Frequencies and how strong they are, 1 the strongest."""
    strength = np.abs(np.fft.rfft(audio.samples * np.hanning(len(audio.samples))))
    return np.fft.rfftfreq(len(audio.samples), 1 / audio.rate), strength / strength.max()


# ---- every kind


@pytest.mark.parametrize(
    "kind, subtype",
    [("WAV", subtype) for subtype in WAV_KINDS]
    + [("WAVEX", "PCM_16"), ("WAVEX", "FLOAT"), ("FLAC", "PCM_16"), ("FLAC", "PCM_24"), ("MP3", None)],
)
def test_every_kind_of_file_sounds_as_it_should(kind, subtype):
    tone = sine(440, 16_000)
    audio = load_audio(encoded(tone, 16_000, kind, subtype), 16_000)
    assert audio.rate == 16_000 and audio.samples.dtype == np.float32
    assert audio.seconds == pytest.approx(1, abs=0.1)
    frequencies, strength = spectrum(audio)
    assert frequencies[strength.argmax()] == pytest.approx(440, abs=1)
    near = {"PCM_U8": 0.01, "ULAW": 0.02, "ALAW": 0.02}.get(subtype, 1e-4)
    if kind != "MP3":
        assert np.abs(audio.samples - tone).max() < near


def test_eight_thousand_per_second_on_two_channels():
    both = np.stack([sine(1000, 8000), sine(3000, 8000)], axis=1)
    audio = load_audio(encoded(both, 8000, subtype="FLOAT"), 16_000)
    assert len(audio.samples) == 16_000
    frequencies, strength = spectrum(audio)
    strong = frequencies[strength > 0.5]
    assert strong.min() == pytest.approx(1000, abs=2) and strong.max() == pytest.approx(3000, abs=2)
    assert strength[frequencies > 4100].max() < 1e-4  # no image of what lies below
    assert np.sqrt((audio.samples[2000:-2000] ** 2).mean()) == pytest.approx(0.25, abs=0.005)


@pytest.mark.parametrize("hertz, kept", [(3000, True), (7000, True), (9000, False), (15_000, False), (23_000, False)])
def test_what_a_lower_rate_cannot_hold_is_gone_and_does_not_come_back_elsewhere(hertz, kept):
    audio = load_audio((sine(hertz, 48_000), 48_000), 16_000)
    assert len(audio.samples) == 16_000
    middle = audio.samples[1000:-1000]
    assert np.abs(middle).max() == pytest.approx(0.5 if kept else 0, abs=0.01)
    if kept:
        frequencies, strength = spectrum(audio)
        assert frequencies[strength.argmax()] == pytest.approx(hertz, abs=1)


@pytest.mark.parametrize("rates", [(44_100, 16_000), (16_000, 24_000), (11_025, 16_000), (96_000, 16_000), (1_000, 768_000)])
def test_any_rate_keeps_time_in_pieces_and_as_a_whole(rates):
    own, rate = rates
    audio = load_audio((sine(100, own, 3.0), own), rate)
    assert len(audio.samples) == pytest.approx(3 * rate, abs=2)
    times = np.arange(len(audio.samples)) / rate
    expected = 0.5 * np.sin(2 * np.pi * 100 * times)
    edge = rate // 5
    assert np.abs(audio.samples - expected)[edge:-edge].max() < 0.005


def test_the_same_rate_changes_nothing_and_channels_become_their_mean():
    samples = np.random.default_rng(0).uniform(-1, 1, (300_000, 3)).astype(np.float32)
    audio = load_audio((samples, 16_000), 16_000)
    assert np.allclose(audio.samples, samples.mean(axis=1), atol=1e-6)
    assert np.array_equal(load_audio(encoded(samples, 16_000, subtype="FLOAT"), 16_000).samples, audio.samples)


@pytest.mark.parametrize(
    "array, expected",
    [
        (np.array([-32768, 16384], np.int16), [-1, 0.5]),
        (np.array([-(2**31), 2**30], np.int32), [-1, 0.5]),
        (np.array([-1, 0.5], np.float32), [-1, 0.5]),
        (np.array([2.5, -3]), [2.5, -3]),
        (np.array([[1, 0], [0, -1]], np.float32), [0.5, -0.5]),
        (np.array([1, 9, 0.5, 9], np.float32)[::2], [1, 0.5]),
    ],
)
def test_arrays(array, expected):
    assert load_audio((array, 16_000), 16_000).samples.tolist() == expected
    assert load_audio([array, np.int64(16_000)], 16_000).samples.tolist() == expected


def test_one_sample_and_a_few():
    assert load_audio((np.ones(1, np.float32), 16_000), 16_000).samples.tolist() == [1]
    assert len(load_audio((np.ones(3, np.float32), 48_000), 16_000).samples) == 1
    with pytest.raises(MediaError, match="^part: holds no sound at all, or less than one sample"):
        load_audio((np.ones(1, np.float32), 48_000), 16_000, name="part")


# ---- limits


@pytest.mark.parametrize("kind", ["WAV", "FLAC", "MP3"])
def test_seconds_are_bounded_while_it_is_read(kind):
    data = encoded(np.zeros(48_000), 16_000, kind)
    assert load_audio(data, 8_000, MediaLimits(max_seconds=3.2)).seconds == pytest.approx(3, abs=0.2)
    with pytest.raises(MediaError, match="^part: lasts longer than the 2.5 seconds of max_seconds"):
        load_audio(data, 8_000, MediaLimits(max_seconds=2.5), "part")


def test_no_more_is_read_than_the_limit_needs(monkeypatch):
    read = []
    real = soundfile.SoundFile.read

    def counted(self, frames=-1, **options):
        read.append(frames)
        return real(self, frames, **options)

    monkeypatch.setattr(soundfile.SoundFile, "read", counted)
    with pytest.raises(MediaError, match="max_seconds"):
        load_audio(encoded(np.zeros((2_000_000, 2)), 16_000, "FLAC"), 16_000, MediaLimits(max_seconds=1))
    assert read == [1 << 17]


@pytest.mark.parametrize(
    "rate, channels, said", [(999, 1, "999 samples per second"), (768_001, 1, "768,001"), (16_000, 33, "33 channels")]
)
def test_odd_rates_and_numbers_of_channels_are_refused(rate, channels, said):
    samples = np.zeros((99, channels), np.float32)
    for source in (wav(samples.astype(np.int16).tobytes(), rate, channels), (samples, rate)):
        with pytest.raises(MediaError, match=f"^part: {said}"):
            load_audio(source, 16_000, name="part")


@pytest.mark.parametrize("rate", [0, -1, 999, 768_001, 16_000.0, True, "16000", None])
def test_a_rate_that_is_none_is_an_error(rate):
    with pytest.raises(InvalidRequestError, match="^rate: "):
        load_audio(b"x", rate)


# ---- damage


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_samples_that_are_no_numbers_are_an_error(value):
    samples = np.zeros(999, np.float32)
    samples[500] = value
    for rate in (16_000, 8_000):
        for source in (encoded(samples, 16_000, subtype="FLOAT"), (samples, 16_000)):
            with pytest.raises(MediaError, match=r"^part: holds samples that are no numbers \(NaN or infinite\)"):
                load_audio(source, rate, name="part")


def test_samples_too_large_for_a_float_are_an_error():
    with pytest.raises(MediaError, match="^part: holds samples that are too large"):
        load_audio((np.full(99, 1e300), 16_000), 16_000, name="part")


@pytest.mark.parametrize("kind", ["WAV", "FLAC", "MP3"])
def test_no_sound_at_all_is_an_error(kind):
    with pytest.raises(MediaError, match="^part: "):
        load_audio(encoded(np.zeros(0), 16_000, kind), 16_000, name="part")
    with pytest.raises(MediaError, match="^part: holds no sound at all"):
        load_audio((np.zeros(0, np.float32), 16_000), 16_000, name="part")


@pytest.mark.parametrize("kind", ["WAV", "WAVEX", "FLAC", "MP3"])
def test_a_file_that_is_cut_short_is_an_error_wherever_that_is(kind):
    whole = encoded(np.random.default_rng(0).uniform(-1, 1, 16_000), 16_000, kind)
    for length in range(1, len(whole) * 9 // 10, len(whole) // 40):
        with pytest.raises(MediaError, match="^part: .*; (give a whole one|convert it to one|give more)$") as caught:
            load_audio(whole[:length], 16_000, name="part")
        assert "0x" not in str(caught.value).partition("begins with")[0]


@pytest.mark.parametrize("size", [0xFFFFFFFF, 0xFFFFFFFF - 36, 0x7FFFFFFF, 0x7FFFFFFF - 100])
def test_a_wav_that_is_sent_while_it_is_made_does_not_know_its_length(size):
    samples = (np.arange(500) * 9).astype(np.int16)
    assert load_audio(wav(samples.tobytes(), size=size), 16_000).samples.tolist() == (samples / 32768).tolist()


@pytest.mark.parametrize(
    "data",
    [
        wav(bytes(100), size=101),
        wav(bytes(100), size=0x7FFE0000),
        wav(bytes(100), rate=0),
        wav(bytes(100), rate=2**32 - 1),
        wav(bytes(100), channels=0),
        wav(bytes(100), channels=65_535),
        wav(bytes(100), bits=0),
        wav(bytes(100), bits=65),
        wav(bytes(100), bits=65_535),
        wav(bytes(100), code=0x55),
        wav(bytes(100), code=0xFFFE),
        wav(b""),
        b"RIFF\xff\xff\xff\xffWAVE",
        b"RIFF\0\0\0\0WAVEdata\0\0\0\0",
        b"RIFF\0\0\0\0AVI LIST",
        b"RIFX\0\0\0\0WAVEfmt ",
        b"fLaC",
        b"fLaC" + bytes(200),
        b"ID3",
        b"ID3\x04\0\0\x7f\x7f\x7f\x7f" + bytes(100),
        b"ID3\x04\0\0\0\0\0\0" + b"OggS" + bytes(100),
        b"\xff\xfb",
        b"\xff\xfb\x90\0" + bytes(50),
        b"FORM\0\0\0\0AIFFCOMM",
        b".snd" + bytes(40),
        b"OggS" + bytes(40),
        b"x",
    ],
)
def test_what_is_no_sound_is_an_error(data):
    with pytest.raises(MediaError, match="^part: "):
        load_audio(data, 16_000, name="part")


@pytest.mark.parametrize(
    "data, missing",
    [
        (b"", 0),
        (b"RIFF", 0),
        (wav(bytes(10)), 0),
        (wav(bytes(10))[:-3], 3),
        (wav(bytes(10))[:40], 0),
        (b"fLaC", 0),
        (mp3(b"Xing" + struct.pack(">III", 3, 9, 5000)), 4000),
        (mp3(b"Info" + struct.pack(">II", 2, 5000)), 4000),
        (mp3(b"Info" + struct.pack(">II", 1, 5000)), 0),
        (mp3(b"Info" + struct.pack(">II", 2, 1005)), 0),
        (b"ID3\x04\0\0\0\0\1\0" + bytes(128) + mp3(b"Xing" + struct.pack(">II", 2, 5000)), 4000),
        (mp3(b"")[:36] + b"Xing" + struct.pack(">I", 2), 0),
    ],
)
def test_what_is_missing_of_a_file(data, missing):
    assert missing_bytes(data) == missing


# ---- what it is given


@pytest.mark.parametrize(
    "source",
    [
        np.zeros(5, np.float32),
        (b"x", 16_000),
        (np.zeros(5, np.float32),),
        (np.zeros(5, np.float32), 16_000.5),
        (16_000, np.zeros(5)),
        [],
        3,
    ],
)
def test_another_type_is_an_error(source):
    with pytest.raises(InvalidRequestError, match="^part: "):
        load_audio(source, 16_000, name="part")


@pytest.mark.parametrize(
    "array",
    [
        np.zeros(5, np.uint8),
        np.zeros(5, bool),
        np.zeros(5, complex),
        np.zeros((2, 16_000), np.float32),
        np.zeros((5, 1, 1)),
        np.zeros((5, 0)),
    ],
)
def test_an_array_that_is_no_sound(array):
    with pytest.raises(MediaError, match="^part: "):
        load_audio((array, 16_000), 16_000, name="part")


def test_nothing_stays_open(leaves_nothing, tmp_path):
    path = tmp_path / "sound.mp3"
    path.write_bytes(encoded(sine(440, 16_000), 16_000))
    assert load_audio(path, 8_000).seconds == 1
    path.write_bytes(b"fLaC")
    with pytest.raises(MediaError):
        load_audio(path, 8_000)


@pytest.mark.parametrize("module", ["soundfile", "soxr"])
def test_without_its_packages_it_says_how_to_get_them(monkeypatch, module):
    data = encoded(np.zeros(9), 16_000)
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(MissingPackageError, match=rf"^part: sound needs {module}; pip install 'localllm\[media\]'"):
        load_audio(data, 16_000, name="part")
