// Four soft voices, one note at a time each, on Tone.js.
import { Filter, Offline, Part, Synth, Volume, getDestination, getTransport, start } from "tone";

const RELEASE = 0.35;
const VOICE = {
  oscillator: { type: "custom", partials: [1, 0.35, 0.18, 0.08, 0.04] },
  envelope: { attack: 0.03, decay: 0.25, sustain: 0.55, release: RELEASE },
};
const LOUDNESS = -16;

/** The voices of a tune, scheduled on the transport; `sounding[v]` says whether voice v is heard. */
function choir(tune, sounding, transport) {
  const filter = new Filter(2400, "lowpass").toDestination();
  const volumes = sounding.map((heard) => new Volume({ volume: LOUDNESS, mute: !heard }).connect(filter));
  const synths = volumes.map((volume) => new Synth(VOICE).connect(volume));
  const parts = synths.map((synth, voice) => {
    const notes = tune.notes.filter((note) => note[3] === voice);
    const events = notes.map(([first, end, pitch]) => ({
      time: first * tune.stepSeconds,
      length: (end - first) * tune.stepSeconds * 0.96,
      hertz: 440 * 2 ** ((pitch - 69) / 12),
    }));
    const part = new Part((time, note) => synth.triggerAttackRelease(note.hertz, note.length, time), events);
    return part.start(0);
  });
  return {
    hear(voice, heard) {
      volumes[voice].mute = !heard;
    },
    silence() {
      synths.forEach((synth) => synth.triggerRelease());
    },
    dispose() {
      [...parts, ...synths, ...volumes, filter].forEach((one) => one.dispose());
    },
  };
}

/** The sound of one tune at a time, on the page's transport. */
class Sound {
  constructor() {
    this.choir = null;
  }

  async play(tune, sounding, seconds) {
    await start();
    this.stop();
    const transport = getTransport();
    this.choir = choir(tune, sounding, transport);
    transport.seconds = seconds;
    transport.start();
  }

  stop() {
    const transport = getTransport();
    transport.stop();
    if (this.choir) {
      this.choir.silence();
      this.choir.dispose();
      this.choir = null;
    }
  }

  get seconds() {
    return getTransport().seconds;
  }

  hear(voice, heard) {
    if (this.choir) this.choir.hear(voice, heard);
  }
}

export const sound = new Sound();

export function seconds(tune) {
  return tune.steps * tune.stepSeconds;
}

/** The whole tune as samples, faster than it plays. */
export async function render(tune, sounding) {
  const buffer = await Offline(
    ({ transport }) => {
      choir(tune, sounding, transport);
      transport.start(0);
    },
    seconds(tune) + RELEASE,
    1,
  );
  return { rate: buffer.sampleRate, samples: buffer.toArray(0) };
}

/** 16-bit samples in a WAV file. */
export function wav({ rate, samples }) {
  const view = new DataView(new ArrayBuffer(44 + 2 * samples.length));
  const text = (at, word) => [...word].forEach((letter, n) => view.setUint8(at + n, letter.charCodeAt(0)));
  text(0, "RIFF");
  view.setUint32(4, 36 + 2 * samples.length, true);
  text(8, "WAVEfmt ");
  view.setUint32(16, 16, true);
  view.setUint16(20, 1, true);
  view.setUint16(22, 1, true);
  view.setUint32(24, rate, true);
  view.setUint32(28, 2 * rate, true);
  view.setUint16(32, 2, true);
  view.setUint16(34, 16, true);
  text(36, "data");
  view.setUint32(40, 2 * samples.length, true);
  samples.forEach((sample, n) => view.setInt16(44 + 2 * n, 32767 * Math.max(-1, Math.min(1, sample)), true));
  return new Blob([view], { type: "audio/wav" });
}
