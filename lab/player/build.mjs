// Bundles the player into one file of the package. `make player` runs it; nothing of npm is needed to install relattn.
import { createHash } from "node:crypto";
import { copyFileSync, readFileSync, readdirSync, writeFileSync } from "node:fs";
import { build } from "esbuild";

const out = "../src/relattn_lab/listen";
const digest = createHash("sha256");
for (const name of ["package-lock.json", ...readdirSync("src").sort().map((file) => `src/${file}`)]) {
  digest.update(name).update(readFileSync(name));
}
const banner = `/* relattn's player; the licences stand in player.LICENSES.txt; sources ${digest.digest("hex")} */`;
await build({
  entryPoints: ["src/player.js"],
  bundle: true,
  minify: true,
  format: "iife",
  target: "es2020",
  legalComments: "none",
  charset: "utf8",
  banner: { js: `${banner}\nglobalThis.TONE_SILENCE_LOGGING = true;` },
  outfile: `${out}/player.js`,
});
copyFileSync("src/player.css", `${out}/player.css`);
const packages = Object.keys(JSON.parse(readFileSync("package-lock.json", "utf8")).packages);
const bundled = packages.filter((path) => path && !path.includes("esbuild"));
const licences = bundled.map((path) => {
  const { name, version } = JSON.parse(readFileSync(`${path}/package.json`, "utf8"));
  const file = readdirSync(path).find((entry) => /^licen[cs]e/i.test(entry));
  return `${name} ${version}\n\n${readFileSync(`${path}/${file}`, "utf8").trim()}\n`;
});
writeFileSync(`${out}/player.LICENSES.txt`, licences.join(`\n${"-".repeat(80)}\n\n`));
