// Numbers and times for people.
const grouped = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });

export const count = (number) => grouped.format(number);

/** 1234567 -> "1.23 M" */
export function short(number) {
  for (const [size, unit] of [[1e9, " G"], [1e6, " M"], [1e4, " k"]]) {
    if (number >= size) return digits(number / (unit === " k" ? 1e3 : size)) + unit;
  }
  return number >= 100 || Number.isInteger(number) ? count(number) : digits(number);
}

const digits = (number) => (number >= 100 ? number.toFixed(0) : number >= 10 ? number.toFixed(1) : number.toFixed(2));

export function bytes(number) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
  let size = number;
  let unit = 0;
  while (size >= 1024 && unit < units.length - 1) {
    size /= 1024;
    unit += 1;
  }
  return (unit === 0 ? count(size) : digits(size)) + " " + units[unit];
}

/** Seconds -> "0.25 ms", "12 ms", "3.4 s", "5 min", "2 h 10 min", "3 d 4 h" */
export function duration(seconds) {
  if (seconds === 0) return "0 s";
  if (seconds < 0.001) return (seconds * 1000).toFixed(2) + " ms";
  if (seconds < 1) return digits(seconds * 1000).replace(/\.0+$/, "") + " ms";
  if (seconds < 60) return digits(seconds).replace(/\.0+$/, "") + " s";
  const minutes = Math.floor(seconds / 60);
  if (minutes < 60) return `${minutes} min`;
  if (minutes < 1440) return `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
  return `${Math.floor(minutes / 1440)} d ${Math.floor((minutes % 1440) / 60)} h`;
}

const two = (number) => String(number).padStart(2, "0");

/** Milliseconds since the epoch -> "2026-11-22 01:18:32.123", in the reader's time zone. */
export function time(ms) {
  if (ms === null || ms === undefined || ms < 0) return "no time";
  const at = new Date(ms);
  if (Number.isNaN(at.getTime())) return String(ms);
  return `${at.getFullYear()}-${two(at.getMonth() + 1)}-${two(at.getDate())} ${clock(at)}`;
}

function clock(at) {
  const ms = String(at.getMilliseconds()).padStart(3, "0");
  return `${two(at.getHours())}:${two(at.getMinutes())}:${two(at.getSeconds())}.${ms}`;
}

/** A time, without the year if it is this year. */
export function dayTime(ms) {
  const whole = time(ms);
  const year = `${new Date().getFullYear()}-`;
  return whole.startsWith(year) ? whole.slice(year.length) : whole;
}

/** A time, without the date if it is today. */
export function shortTime(ms) {
  const at = new Date(ms);
  if (ms < 0 || Number.isNaN(at.getTime())) return time(ms);
  return at.toDateString() === new Date().toDateString() ? clock(at) : time(ms).slice(0, -4);
}

export const plural = (number, one, many = one + "s") => `${count(number)} ${number === 1 ? one : many}`;
