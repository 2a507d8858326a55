#!/usr/bin/env bash
# Runs one stress test: stress.sh RUN [N]. Without RUN, the script lists the runs. `make stress RUN=name N=value` builds
# the programs first. Other settings of a run are environment variables. The sentence of the run names them.
set -euo pipefail
cd "$(dirname "$0")/../.."
reports=$PWD/.cache
cd services
run=${1:-}

# Each run below begins with a line `NAME) # DEFAULT: SENTENCE`. DEFAULT is the default of N, or - if the run has no N.
runs() { sed -nE 's/^([a-z]+)\) # ([^:]+): (.*)$/\1\t\2\t\3/p' e2e/stress.sh; }

# Prints one line for each run.
list() {
	echo 'Choose a run with `make stress RUN=name`, or with `make stress RUN=name N=value` to replace the default of N:'
	runs | while IFS=$'\t' read -r name n text; do
		if [ "$n" = - ]; then n=; else n="N=$n"; fi
		printf '  %-11s %-11s %s\n' "$name" "$n" "$text"
	done
}

# Runs the tests of some packages: tests TIMEOUT PATTERN PACKAGE...
tests() { go test -count=1 -v -timeout "$1" -run "$2" "${@:3}"; }

[ -n "$run" ] || { list; exit; }
default=$(runs | awk -F '\t' -v name="$run" '$1 == name { print $2 }')
[ -n "$default" ] || { echo "There is no run $run." >&2; list >&2; exit 2; }
N=${2:-$default}

case $run in
asked) # -: Run the stories without the cache of decisions, and again with each cached decision compared with policy.
	stories=$(go list ./e2e/{agents,approvals,catalog,cli,clients,edge,mesh,policy,servers,telemetry})
	E2E_SLUICE_DECISIONS_KEEP=false go test -p 1 -count=1 -timeout 60m $stories
	# These tests set the ratio of sampled traces themselves.
	sampled='^(TestTrace_UnsampledTraceHasAnID|TestConfig_InvalidConfigurationsAreReportedWithPosition)$'
	E2E_SLUICE_TELEMETRY_SAMPLE=1 go test -p 1 -count=1 -timeout 60m -skip "$sampled" $stories
	;;
away) # 60s: Let the network to PostgreSQL fail in six ways, for N each.
	SLUICE_AWAY=$N tests 30m TestApprovals_SurviveDatabaseNetworkFaults ./e2e/mesh
	;;
changes) # 1000: Change what policy knows of tools N times under load, and check that no call is decided by the old state.
	SLUICE_CHANGES=$N tests 30m TestCatalogChanges_NoLaterCallIsDecidedByTheOldState ./e2e/mesh
	;;
coldstart) # 20: Time N times how long the first call of a client takes if its command has to start the mesh.
	SLUICE_COLD_STARTS=$N tests 30m 'TestStdio_ColdStart$' ./e2e/personal
	;;
company) # 300: Let N people of a company sign in, connect their accounts and call a tool, and block one of them.
	SLUICE_PEOPLE=$N tests 30m 'TestCompany_' ./e2e/signin
	;;
edits) # 10000: Make N random edits of each format and undo them, and replace a file 1,000 times while others write it.
	SLUICE_EDITS=$N tests 30m 'TestRandom_EditsAreUndoneToTheByte$' ./sluice/internal/configedit
	SLUICE_ROUNDS=1000 tests 10m 'TestReplace_RacesWithAnotherProgram$' ./sluice/internal/atomicfile
	;;
failpoints) # 200: Kill the mesh at each failpoint with N seeds. A run that was stopped continues where it stopped.
	report=${SLUICE_REPORT:-$reports/failpoints.txt}
	mkdir -p "$(dirname "$report")"
	echo "each seed has a line in $report; the output of the tests is in $report.log"
	code=0
	SLUICE_SEEDS=$N SLUICE_REPORT=$report \
		tests 6h 'TestFailpoints_ApprovedCallsSurviveAKillAtEachPoint$' ./e2e/mesh >>"$report.log" 2>&1 || code=$?
	tail -n 1 "$report"
	exit $code
	;;
faults) # 1000: Take N turns of agents whose model fails in every way. SLUICE_SEED=1 selects the faults.
	SLUICE_TURNS=$N SLUICE_SEED=${SLUICE_SEED:-1} tests 60m 'TestModelFaults_NoTurnLosesOrRepeatsACall$' ./e2e/agents
	;;
firstminute) # 5: Time N times how long the first refusal takes from the first command, sluice init.
	SLUICE_FIRST=$N tests 30m 'TestInit_FirstRefusal$' ./e2e/personal
	;;
hidden) # 10000: Compare the times of N pairs of calls: of a hidden tool, and of a tool that does not exist.
	SLUICE_PAIRS=$N tests 30m 'TestHiddenTool_ResponseTimeDoesNotRevealIt$' ./e2e/policy
	;;
hostile) # 1h: Attack a mesh for N while one agent behaves well. SLUICE_ATTACKS=regexp selects attacks.
	SLUICE_HOSTILE=$N tests 2h . ./e2e/hostile
	;;
initkills) # all: Kill sluice init, and its undo, before N of their steps or before all, and let a client write 1,000 times.
	SLUICE_INIT_KILLS=$N tests 60m 'TestInit_KilledAtEachStep$' ./e2e/personal
	SLUICE_REWRITES=1000 tests 10m 'TestWrite_LosesNothingOfAClientThatRewritesItsFile$' ./sluice/internal/clientsetup
	;;
kill) # 100: Kill the mesh N times under load, and N times while approved calls run.
	SLUICE_KILLS=$N tests 20m 'TestKill_JournalHasEveryCall|TestKill_NoApprovedCallRunsTwice' ./e2e/mesh
	;;
many) # 10000: Create N agents, and time their prompts when they are in memory and when they are not.
	SLUICE_MANY=$N tests 60m 'TestMany(Agents|Prompts)_' ./wasmagent
	;;
matrix) # -: Let every client use every server. make test tries a quarter of the pairs.
	SLUICE_MATRIX=all tests 60m 'TestMatrix_ClientsUseServers$' ./e2e/clients
	;;
neighbours) # 2s: Time the turns of guests while hostile guests run, in 18 periods of N each.
	SLUICE_NEIGHBOURS=$N tests 30m 'TestStep_IsFastNextToHostileGuests$' ./wasmagent/internal/worker
	go test ./wasmagent/internal/worker -run '^$' -bench Deadline -benchtime 50x
	;;
observe) # 3000: Let three agents make N calls (at least 300) to observed servers, and again under a policy made from them.
	SLUICE_OBSERVED_CALLS=$N SLUICE_SEED=${SLUICE_SEED:-1} tests 30m TestObservedDay_ReportPredictsTheRefusedCalls ./e2e/policy
	;;
patience) # 90s: Let official clients wait N for an approver, which is longer than calls are held.
	SLUICE_PATIENCE=$N tests 20m TestClients_RepeatTheCallAfterATicket ./e2e/approvals
	;;
readers) # 10000000: Let readers in Go, Node and Python read N messages that the strict parser accepts.
	go test ./gateway/internal/jsonrpc -run TestReadersAgree -messages "$N" -timeout 2h -count=1 -v
	;;
redeem) # 100: Let 200 callers make one approved call, N times: on both stores, and through the mesh.
	SLUICE_REDEEMS=$N tests 30m 'TestClaim_OneOf200ConcurrentClaimsSucceeds|TestRetries_ApprovedCallReachesTheServerOnce' \
		./approval/internal/store ./e2e/mesh
	;;
reloads) # 20: Replace 1,000 documents of ten rules N times under 1,000 calls a second, at two replicas.
	SLUICE_RELOADS=$N tests 30m 'TestApplyDocuments_NoDecisionIsTornOrOld$' ./policy
	;;
replay) # 100000: Replay a journal with N calls, which takes at most a minute for each 100,000.
	SLUICE_REPLAYED=$N tests 30m 'TestReplay_ManyCalls$' ./e2e/policy
	;;
servers) # 1000: List N servers of a hundred tools each, show a page, decide by category, and restart.
	SLUICE_SERVERS=$N tests 30m 'TestManyServers_AreListedAndCallsAreDecidedByClass$' ./e2e/catalog
	;;
soak) # 10m: Call servers for N in SLUICE_SESSIONS=1000 sessions, while one server hangs and another dies every second.
	SLUICE_SOAK=$N SLUICE_SESSIONS=${SLUICE_SESSIONS:-1000} tests 2h TestSoak_ ./e2e/servers
	;;
stops) # 1000: Stop and resume calls N times under load. SLUICE_STOPS_STORE=postgres uses two policy services.
	SLUICE_STOPS=$N tests 30m TestStops_NoCallBeginsAfterTheAcknowledgement ./e2e/mesh
	;;
waits) # 35s: Let an agent wait N for its approval, while the gateway reports progress.
	SLUICE_APPROVAL_WAIT=$N tests 30m TestAgents_CallRunsOnceWhenApprovedLongAfterThePrompt ./e2e/agents
	;;
esac
