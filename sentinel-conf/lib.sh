# shellcheck shell=bash
# Common functions of the scripts up, down, break and test, which source this file.
#
# A deployment is a directory with these files:
#   palisade-deployment      marks the directory as a deployment. `down` removes no other directory.
#   deployment.json          describes the deployment for programs
#   state                    describes the deployment for these scripts
#   netns                    name of its network namespace, if it has one
#   secrets                  passwords by user, if its servers have ACLs (`up --acl`)
#   up.pid watcher.pid timer.*.pid   pid files of the processes that these scripts started
#   <group>/<id>/            redis.conf or sentinel.conf, log, pid and data of one instance
# A pid file contains "<pid> <start time>". If the process with this pid has another start time, it
# belongs to another program, so it gets no signal.

LIB_DIR=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
REDIS_SERVER=${PALISADE_REDIS_SERVER:-redis-server}
REDIS_CLI=${PALISADE_REDIS_CLI:-redis-cli}
MARK=palisade-deployment
CANNOT=77 # exit code: this machine or user cannot do that (a test counts as skipped)
OPERATOR='' # password of the user `operator`, where the servers have ACLs
NET=()    # words in front of a command that must run inside the deployment's network

say() { printf '%s\n' "$*" >&2; }
die() { say "${0##*/}: $1"; exit "${2:-1}"; }

# --- the machine ---------------------------------------------------------------

need_tools() {
  local tool version
  [[ -r /proc/self/stat ]] || die "needs Linux with /proc"
  for tool in "$REDIS_SERVER" "$REDIS_CLI"; do
    command -v "$tool" >/dev/null ||
      die "$tool is missing; do: apt-get install -y redis-server redis-sentinel redis-tools"
  done
  for tool in setsid flock timeout od; do
    command -v "$tool" >/dev/null || die "$tool is missing; do: apt-get install -y util-linux coreutils"
  done
  version=$("$REDIS_SERVER" --version)
  [[ $version =~ v=([0-9]+)\. && ${BASH_REMATCH[1]} -ge 7 ]] ||
    die "needs Redis 7.0 or newer, found: $version; set PALISADE_REDIS_SERVER to a newer one"
}

need_netns() {
  local tool
  ((EUID == 0)) || die "network namespaces and partitions need root; run this again as root" "$CANNOT"
  for tool in ip nft nsenter; do
    command -v "$tool" >/dev/null ||
      die "$tool is missing; do: apt-get install -y iproute2 nftables util-linux" "$CANNOT"
  done
}

# --- processes -----------------------------------------------------------------

# Sets PROC_START to the start time of the process with the pid $1. Fails if there is no such
# process, or if it is a zombie.
proc_start() {
  local line fields
  { IFS= read -r line <"/proc/$1/stat"; } 2>/dev/null || return 1
  read -ra fields <<<"${line##*) }"
  [[ ${fields[0]} != [ZX] ]] || return 1
  PROC_START=${fields[19]}
}

alive() { # PID START
  local PROC_START
  proc_start "$1" && [[ $PROC_START == "$2" ]]
}

# Sets PID and START from the pid file $1. Fails if that process does not exist any more.
running() {
  PID='' START=''
  { read -r PID START <"$1"; } 2>/dev/null || return 1
  [[ -n $START ]] && alive "$PID" "$START"
}

write_pid() { # FILE: of the calling (sub)shell; kept by exec
  local PROC_START
  proc_start "$BASHPID"
  printf '%s %s\n' "$BASHPID" "$PROC_START" >"$1"
}

# Starts a process in a session of its own, without the open files of this script. The pid file is
# written before the command runs, so that `down` finds each process that was started.
spawn() { # PIDFILE LOGFILE COMMAND...
  local pidfile=$1 log=$2
  shift 2
  (
    write_pid "$pidfile"
    exec </dev/null >>"$log" 2>&1
    close_files
    exec setsid "$@"
  ) &
  # shellcheck disable=SC2034 # for the caller
  SPAWNED=$!
  disown
}

close_files() {
  local f fd
  for f in /proc/"$BASHPID"/fd/*; do
    fd=${f##*/}
    if [[ $fd == +([0-9]) ]] && ((fd > 2)); then eval "exec $fd>&-"; fi
  done
}

# Sleeps without a child process. A child could outlive this script.
snooze() { # SECONDS
  [[ -n ${SNOOZE_FD:-} ]] || exec {SNOOZE_FD}<> <(:)
  read -rt "$1" -u "$SNOOZE_FD" || true
}

# Ends the processes of these pid files. They first get TERM, and CONT so that frozen processes
# receive it. After SECONDS-TO-LEAVE, they get KILL.
stop_all() { # SECONDS-TO-LEAVE PIDFILE...
  local grace=$1 file sig until pids=() left PID START
  shift
  for file; do
    if running "$file" && ((PID != $$)); then pids+=("$PID $START"); fi
  done
  for sig in TERM KILL; do
    ((${#pids[@]})) || return 0
    for file in "${pids[@]}"; do
      kill -s "$sig" "${file% *}" 2>/dev/null || true
      # The process group contains the server and the child that rewrites its append-only file.
      [[ $sig == TERM ]] || kill -s KILL -- "-${file% *}" 2>/dev/null || true
      kill -s CONT "${file% *}" 2>/dev/null || true
    done
    until=$((SECONDS + grace + 1))
    while ((${#pids[@]} && SECONDS < until)); do
      left=()
      for file in "${pids[@]}"; do
        # shellcheck disable=SC2086 # two words: pid, start time
        if alive $file; then left+=("$file"); fi
      done
      pids=("${left[@]}")
      ((${#pids[@]} == 0)) || snooze 0.02
    done
  done
  ((${#pids[@]} == 0)) || die "process ${pids[0]% *} does not end on SIGKILL; look at it with: ps -fp ${pids[0]% *}"
}

# --- servers -------------------------------------------------------------------

# Runs a Redis command, for at most one second, because a frozen server does not answer.
rcli() { # HOST PORT COMMAND...   (without a command: commands from stdin)
  local host=$1 port=$2
  shift 2
  # The password is passed by the environment, because all users can read command lines.
  if [[ -n $OPERATOR ]]; then
    REDISCLI_AUTH=$OPERATOR timeout 1 "${NET[@]}" "$REDIS_CLI" --user operator -h "$host" -p "$port" "$@" 2>/dev/null
  else
    timeout 1 "${NET[@]}" "$REDIS_CLI" -h "$host" -p "$port" "$@" 2>/dev/null
  fi
}

# Sets FIELD to the value of the field $2 in the text $1, which is the answer to INFO.
info_field() {
  FIELD=''
  [[ $'\n'$1 =~ $'\n'"$2":([^$'\r\n']*) ]] && FIELD=${BASH_REMATCH[1]}
}

# Succeeds if the server that answers at this address is the process with this pid.
answers_as() { # HOST PORT PID
  local info FIELD
  info=$(rcli "$1" "$2" INFO server) || return 1
  info_field "$info" process_id && [[ $FIELD == "$3" ]]
}

# --- the deployment ------------------------------------------------------------

# An instance is one server or Sentinel. The file `state` has one line for each instance. IDS has
# the ids of all instances, and NAMES has the names of all groups. The other arrays are indexed by
# id.
declare -a IDS=() NAMES=()
declare -A KIND=() GROUP=() BOX=() HOST=() PORT=()

add_instance() { # KIND GROUP ID BOX HOST PORT
  IDS+=("$3")
  KIND[$3]=$1 GROUP[$3]=$2 BOX[$3]=$4 HOST[$3]=$5 PORT[$3]=$6
  if [[ " ${NAMES[*]} " != *" $2 "* ]]; then NAMES+=("$2"); fi
}

# Sets DIR. If the deployment has a network namespace, sets NET and NETNS, too.
open_deployment() { # DIR
  [[ -d $1 ]] || die "no directory $1; the directory of a deployment is what \`up\` printed"
  DIR=$(cd "$1" && pwd)
  [[ -e $DIR/$MARK ]] || die "$DIR is not a deployment made by \`up\`; nothing done"
  NETNS='' NET=()
  if [[ -s $DIR/netns ]]; then
    NETNS=$(<"$DIR/netns")
    NET=(nsenter "--net=/run/netns/$NETNS" --)
  fi
  OPERATOR=''
  [[ ! -s $DIR/secrets ]] || OPERATOR=$(secret operator)
}

secret() { # USER
  local user word
  while read -r user word; do
    [[ $user != "$1" ]] || printf '%s' "$word"
  done <"$DIR/secrets"
}

load_state() {
  local kind group id box host port
  [[ -s $DIR/state ]] || die "$DIR has no state file: \`up\` has not finished there; take it down with: down $DIR"
  while read -r kind group id box host port; do
    add_instance "$kind" "$group" "$id" "$box" "$host" "$port"
  done <"$DIR/state"
}

home_of() { printf '%s/%s/%s' "$DIR" "${GROUP[$1]}" "$1"; }
addr_of() { printf '%s:%s' "${HOST[$1]}" "${PORT[$1]}"; }
pid_of() { local PID START; running "$(home_of "$1")/pid" || true; printf '%s' "${PID:-0}"; }

# Starts the instance $1 with its configuration file. Sets SPAWNED to its pid.
start_instance() {
  local home cmd
  home=$(home_of "$1")
  if [[ ${KIND[$1]} == sentinel ]]; then
    cmd=("$REDIS_SERVER" "$home/sentinel.conf" --sentinel)
  else
    cmd=("$REDIS_SERVER" "$home/redis.conf")
  fi
  spawn "$home/pid" "$home/log" "${NET[@]}" "${cmd[@]}"
}

members() { # KIND GROUP: ids
  local id
  for id in "${IDS[@]}"; do
    if [[ ${KIND[$id]} == "$1" && ${GROUP[$id]} == "$2" ]]; then printf '%s\n' "$id"; fi
  done
}

json_string() { local s=${1//\\/\\\\}; printf '"%s"' "${s//\"/\\\"}"; }
join() { local sep=$1 out='' x; shift; for x; do out+="${out:+$sep}$x"; done; printf '%s' "$out"; }

deployment_json() {
  local name id servers sentinels pids groups=() netns=null acl=null
  if [[ -s $DIR/secrets ]]; then
    acl="{\"username\":\"palisade\",\"password\":\"$(secret palisade)\",\"operator_password\":\"$(secret operator)\"}"
  fi
  [[ -z $NETNS ]] || netns=$(json_string "$NETNS")
  for name in "${NAMES[@]}"; do
    servers=() sentinels=() pids=()
    for id in $(members server "$name"); do
      servers+=("{\"id\":\"$id\",\"addr\":\"$(addr_of "$id")\",\"pid\":$(pid_of "$id"),\"box\":${BOX[$id]}}")
    done
    for id in $(members sentinel "$name"); do
      sentinels+=("\"$(addr_of "$id")\"")
      pids+=("$(pid_of "$id")")
    done
    groups+=("{\"name\":\"$name\",\"quorum\":2,\"sentinels\":[$(join , "${sentinels[@]}")],\"servers\":[$(join , "${servers[@]}")],\"sentinel_pids\":[$(join , "${pids[@]}")]}")
  done
  printf '{"dir":%s,"netns":%s,"acl":%s,"groups":[%s]}\n' "$(json_string "$DIR")" "$netns" "$acl" "$(join , "${groups[@]}")"
}

write_state() {
  local id
  for id in "${IDS[@]}"; do
    printf '%s %s %s %s %s %s\n' "${KIND[$id]}" "${GROUP[$id]}" "$id" "${BOX[$id]}" "${HOST[$id]}" "${PORT[$id]}"
  done >"$DIR/state.new"
  mv "$DIR/state.new" "$DIR/state"
}

write_json() {
  (
    flock 8
    deployment_json >"$DIR/deployment.json.new"
    mv "$DIR/deployment.json.new" "$DIR/deployment.json"
  ) 8<"$DIR"
}

# Asks one Sentinel for the master of a group. Sets EPOCH and ADDR. Fails if it does not answer.
ask_sentinel() { # ID GROUP
  local lines i ip='' port=''
  EPOCH='' ADDR=''
  mapfile -t lines < <(rcli "${HOST[$1]}" "${PORT[$1]}" SENTINEL MASTER "$2")
  for ((i = 0; i + 1 < ${#lines[@]}; i += 2)); do
    case ${lines[i]} in
      ip) ip=${lines[i + 1]} ;;
      port) port=${lines[i + 1]} ;;
      config-epoch) EPOCH=${lines[i + 1]} ;;
    esac
  done
  ADDR=$ip:$port
  [[ -n $EPOCH ]]
}

# Sets MASTER to the id of the group's master. The Sentinel with the largest epoch decides, because
# it has the newest configuration.
find_master() { # GROUP
  local id best=-1 at='' EPOCH ADDR
  for id in $(members sentinel "$1"); do
    if ask_sentinel "$id" "$1" && ((EPOCH > best)); then best=$EPOCH at=$ADDR; fi
  done
  [[ -n $at ]] || die "no Sentinel of $1 answers; name a server with --server ID"
  MASTER=''
  for id in $(members server "$1"); do
    if [[ $(addr_of "$id") == "$at" ]]; then MASTER=$id; fi
  done
  [[ -n $MASTER ]] || die "the Sentinels of $1 name $at, which is no server of this deployment; name one with --server ID"
}

# --- ports --------------------------------------------------------------------- The ports are
# below the range from which the kernel takes ports for outgoing connections. A deployment keeps its
# ports as long as its directory exists, even while a server is dead. Otherwise another deployment
# could use the port. Then the Sentinels would find a foreign server at the address of their old
# master, and make it a replica.

PORT_LOW=20000 PORT_COUNT=10000
PORTS_DIR=/tmp/palisade-ports.$EUID

open_ports() {
  mkdir -m 700 "$PORTS_DIR" 2>/dev/null || true
  [[ -d $PORTS_DIR && -O $PORTS_DIR && ! -L $PORTS_DIR ]] || die "$PORTS_DIR belongs to someone else; remove it"
}

# Frees the ports of deployments that no longer exist. The caller must hold the lock of PORTS_DIR.
sweep_ports() {
  local f
  for f in "$PORTS_DIR"/*; do
    if [[ -L $f && ! -e $f ]]; then rm -f "$f"; fi
  done
}

# Sets TAKEN_PORT to a port on which no program listens now, and which no other deployment owns. If
# another program binds this port before the server starts, the caller must take another port.
take_port() {
  local port
  if ((${#NET[@]})); then # alone in there
    TAKEN_PORT=$((PORT_LOW + ++TAKEN))
    return
  fi
  while :; do
    port=$((PORT_LOW + SRANDOM % PORT_COUNT))
    ((port != 26379)) || continue
    ln -s "$DIR" "$PORTS_DIR/$port" 2>/dev/null || continue
    printf '%s\n' "$port" >>"$DIR/ports"
    if ! (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null; then
      # shellcheck disable=SC2034 # for the caller
      TAKEN_PORT=$port
      return
    fi # somebody listens there: leave the port alone
  done
}
TAKEN=0

free_ports() {
  local port
  [[ -s $DIR/ports ]] || return 0
  while read -r port; do
    if [[ $(readlink "$PORTS_DIR/$port") == "$DIR" ]]; then rm -f "$PORTS_DIR/$port"; fi
  done <"$DIR/ports"
}

# --- the watcher ---------------------------------------------------------------

# Runs in the background. Removes the deployment as soon as the owner's process no longer exists.
watch_owner() { # DIR PID START
  while alive "$2" "$3"; do
    [[ -e $1/$MARK ]] || return 0
    snooze 0.2
  done
  exec "$LIB_DIR/down" "$1"
}

# Runs in the background. Runs a command after some seconds.
run_later() { # PIDFILE SECONDS COMMAND...
  local file=$1
  snooze "$2"
  rm -f "$file"
  shift 2
  "$@"
}

continue_process() { # PID START
  if alive "$1" "$2"; then kill -s CONT "$1"; fi
}

# Prints 16 random hexadecimal digits.
random_id() {
  od -An -N8 -tx1 /dev/urandom | tr -d ' \n'
}

# Prints palisade's marker for a server that has never granted a lock: random names of its history,
# of the deployment and of the vote, its replication id, and zeros, which mean that it has never
# lost data.
marker_of_new() { # REPLICATION-ID DEPLOYMENT-ID
  printf 'p1 %s 000001 %s %s %s %013d %016d 9999999999999999 %06d %012d %016d %012d %09d %016d n -%013d %013d' \
    "$(random_id)" "$1" "$2" "$(random_id)" 0 0 0 0 0 0 0 0 0 0
}
