# Puts an unpacked version into use: compiled, tried, linked; old ones beyond the kept number go.
# Arguments: install folder, folder of the new version, interpreter, number of versions to keep beside it.
set -eu
install=$1 new=$2 python=$3 keep=$4
"$python" -m compileall -q "$new/lib" || true  # a dependency may carry a file for another Python
"$new/bin/coderack" --version >/dev/null
touch "$new/complete"
ln -sfn "$new" "$install/next"
mv -T "$install/next" "$install/current"
ln -sfn "$install/current/bin/coderack" /usr/local/bin/coderack
# Newest first; the current one is not counted.
ls -1dt "$install"/*/ | while read -r folder; do
  folder=${folder%/}
  case ${folder##*/} in current | next) continue ;; esac
  [ "$folder" = "$new" ] && continue
  keep=$((keep - 1))
  [ "$keep" -ge 0 ] || rm -rf "$folder"
done
