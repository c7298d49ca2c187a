# Prints the finished environments to which no link of the folder points, newest first, without the newest few.
# Arguments: folder of the environments, number of unused ones to keep. Changes nothing.
root=$1 keep=$2
cd "$root" 2>/dev/null || exit 0
ls -dt -- */.finished 2>/dev/null | while IFS=/ read -r name _; do
  # A link is listed like a folder.
  [ -L "$name" ] && continue
  used=
  for link in *; do
    if [ -L "$link" ] && [ "$link" -ef "$name" ]; then used=1; fi
  done
  [ -n "$used" ] || echo "$root/$name"
done | tail -n +"$((keep + 1))"
