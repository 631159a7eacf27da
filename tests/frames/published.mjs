// Prints the specification's schemas as the official conformance suite carries them, to judge what is said on a wire:
// node published.mjs INDEX_JS. An object, revision to schema; 2024-11-05 is none of them.
//
// The suite is one minified file: the schemas are constants beside one another, and behind them stands which revision
// has which. The newest one it calls the draft.

import { readFileSync } from "node:fs";
import vm from "node:vm";

const bundle = readFileSync(process.argv[2], "utf8");
const found = /(\w+)=\{\$schema:.*?(?=;const \w+=(\{"2025-03-26":\1,[^}]*\}))/s.exec(bundle);
if (found === null) throw new Error("the conformance suite keeps its schemas in another way than it did");
const [constants, , revisions] = found;
const schemas = vm.runInNewContext(`const ${constants};(${revisions.replace(/\[\w+\]:/, '"2026-07-28":')})`);
console.log(JSON.stringify(schemas));
