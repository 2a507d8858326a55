# The verbs of the project; `make help` lists them. Nothing has to be installed by
# hand but Go, Node's npm and git: tools are pinned here and fetched on first use.
SHELL         := bash
.SHELLFLAGS   := -euo pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS     += --warn-undefined-variables --no-builtin-rules

BUF           := go run github.com/bufbuild/buf/cmd/buf@v1.69.0
LINT          := go run github.com/golangci/golangci-lint/v2/cmd/golangci-lint@v2.15.0
PROGRAMS      := $(filter-out ./bench/%,$(patsubst services/%,./%,$(wildcard services/*/cmd/*)))
BENCHSTAT     := go run golang.org/x/perf/cmd/benchstat@v0.0.0-20260908200009-22c9c6c9d4da
PROTOVALIDATE := github.com/bufbuild/protovalidate@v1.2.2
VALIDATE      := .cache/proto/buf/validate/validate.proto
CONTRACTS     := proto/contracts.binpb

# The modules of go.work, for tools that do not know the "work" pattern.
MODULES = $(shell go list -m -f '{{.Dir}}')
PATTERN = $(addsuffix /...,$(MODULES))
ARGS    ?=
RACE    ?= -race

.PHONY: help
help: ## List the targets
	@awk -F ':.*## ' '/^[a-z][a-z0-9-]*:.*## / {printf "  %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: up
up: guests ## Build the program that has all services, and run the mesh in one process (ARGS="--config FILE")
	@mkdir -p bin
	cd services && go build -trimpath -o ../bin/ ./sluice/cmd/sluice
	bin/sluice up $(ARGS)

GUESTS := $(notdir $(wildcard sdk/guests/*))

.PHONY: guests
guests: ## Build the guests that are built into the programs
	@cd sdk && for guest in $(GUESTS); do GOOS=wasip1 GOARCH=wasm go build -trimpath -buildvcs=false -buildmode=c-shared -ldflags='-s -w' \
		-o ../services/wasmagent/internal/modules/dist/$$guest.wasm ./guests/$$guest; done; \
		gzip -9nf ../services/wasmagent/internal/modules/dist/*.wasm

.PHONY: build
build: guests ## Build every program into bin/
	@mkdir -p bin
	cd services && go build -trimpath -o ../bin/ $(PROGRAMS)

.PHONY: check
check: generated breaking lint test ## Everything CI runs, in CI's order

# Programs that some tests start. Without them those tests are left out, and `make test` says so first.
PROGRAMS_OF_TESTS := chromium nginx haproxy python3 initdb
MISSING = $(foreach p,$(PROGRAMS_OF_TESTS),$(if $(shell PATH="$$PATH:$${PG_BIN:-}:$$(echo /usr/lib/postgresql/*/bin | tr ' ' :)"; command -v $(p)),,$(p)))

.PHONY: missing
missing:
	@$(if $(strip $(MISSING)),echo "left out: tests that start $(strip $(MISSING)) (Debian: apt-get install chromium nginx-light haproxy python3 postgresql)",true)

.PHONY: test
test: missing npm build ## Every test that needs no Docker, with the race detector (RACE= leaves it out)
	@mkdir -p .cache
	export SLUICE_TEST_PROGRAMS=$(CURDIR)/bin GORACE=atexit_sleep_ms=0 SLUICE_TEST_NO_BROWSER=$(if $(findstring chromium,$(MISSING)),1) \
		SLUICE_TEST_NO_POSTGRES=$(if $(findstring initdb,$(MISSING)),1); came=0; \
		go test $(ALONE) $(BUILT) $(RACE) -timeout 25m $$(go list work | grep -v -e /services/e2e $(SEQUENTIAL:%=-e '/services/%$$')) || came=$$?; \
		go test $(ALONE) $(BUILT) -parallel 6 -trimpath -timeout 40m $(SEQUENTIAL:%=./services/%) $$(go list work | grep /services/e2e) || came=$$?; \
		exit $$came

# `make lint` vets; debugging information (-w leaves it out) would take half of the time of linking.
# One package is tested at a time; if there is flock(1), the next one is built meanwhile. Many tests
# wait for something, so that 3 may run on two processors, and 6 of those that start whole meshes. What is tested end to end are programs that
# were built without the race detector, in processes of their own: their tests do without it too. So do
# packages that have nothing in them that could race, which a test of internal/arch makes sure of.
SEQUENTIAL := approval/internal/lifecycle approval/internal/view gateway/internal/jsonrpc internal/binding internal/canonicaljson internal/redact internal/strictyaml policy/internal/advice policy/internal/catalog policy/internal/classify policy/internal/condition policy/internal/document policy/internal/engine policy/internal/locator wasmagent/internal/models
BUILT := -vet=off -ldflags=-w -parallel 3
ALONE := $(if $(shell command -v flock),-p 2 -exec "flock -o $(CURDIR)/.cache/test",-p 1)

.PHONY: recording
recording: build ## Record the first minute again, as README.md shows it
	python3 docs/images/first-minute.py bin >.cache/first-minute.cast
	npx --yes svg-term-cli@2.1.1 --in .cache/first-minute.cast --out docs/images/first-minute.svg --window --no-cursor --width 110 --height 30

.PHONY: kill
kill: ## Kill the mesh 100 times under load, and 100 times while approved calls run
	cd services && SLUICE_KILLS=100 go test ./e2e -run 'TestKill_JournalHasEveryCall|TestKill_NoApprovedCallRunsTwice' -count=1 -v -timeout 20m

.PHONY: patience
patience: npm ## Let official clients wait 90 s for a person, beyond the time that calls are held (PATIENCE=90s)
	cd services && SLUICE_PATIENCE=$(PATIENCE) go test ./e2e -run 'TestClients_RepeatTheCallAfterATicket' -count=1 -v -timeout 20m

PATIENCE ?= 90s

.PHONY: waits
waits: ## Let an agent wait for its approval for WAITS, through progress reports of the gateway (WAITS=35s)
	cd services && SLUICE_APPROVAL_WAIT=$(WAITS) go test ./e2e -run 'TestAgents_CallRunsOnceWhenApprovedLongAfterThePrompt' -count=1 -v -timeout 30m

WAITS ?= 35s

.PHONY: soak
soak: ## Call servers that work for SOAK in SESSIONS sessions, while one hangs and one dies every second (SOAK=10m SESSIONS=1000)
	cd services && SLUICE_SOAK=$(SOAK) SLUICE_SESSIONS=$(SESSIONS) go test ./e2e -run TestSoak_ -count=1 -v -timeout 2h

SOAK     ?= 10m
SESSIONS ?= 1000

.PHONY: away
away: ## Let the network to PostgreSQL fail for a minute in each of six ways (AWAY=60s)
	cd services && SLUICE_AWAY=$(AWAY) go test ./e2e -run 'TestApprovals_SurviveDatabaseNetworkFaults' -count=1 -v -timeout 30m

AWAY ?= 60s

.PHONY: changes
changes: ## Change what is known of tools 1,000 times under load, with roles that stand still or are killed, and hold each call to it (CHANGES=1000)
	cd services && SLUICE_CHANGES=$(CHANGES) go test ./e2e -run 'TestCatalogChanges_NoLaterCallIsDecidedByTheOldState' -count=1 -v -timeout 30m

CHANGES ?= 1000

.PHONY: asked
asked: build ## Run the stories with policy asked about every call: by itself, and beside each decision that is kept
	cd services && E2E_SLUICE_DECISIONS_KEEP=false go test ./e2e -count=1 -timeout 60m
	cd services && E2E_SLUICE_TELEMETRY_SAMPLE=1 go test ./e2e -skip '$(SAMPLES)' -count=1 -timeout 60m

# What says itself how many traces are sampled.
SAMPLES := ^(TestTrace_UnsampledTraceHasAnID|TestConfig_InvalidConfigurationsAreReportedWithPosition)$$

.PHONY: hidden
hidden: ## Time 10,000 pairs of calls, of hidden tools and of tools that are not there
	cd services && SLUICE_PAIRS=10000 go test ./e2e -run 'TestHiddenTool_ResponseTimeDoesNotRevealIt$$' -count=1 -v

.PHONY: neighbours
neighbours: ## Let guests that behave work beside such that do not, and time their turns (NEIGHBOURS=2s for each of 18 stretches)
	cd services && SLUICE_NEIGHBOURS=$(NEIGHBOURS) go test ./wasmagent/internal/worker -run 'TestStep_IsFastNextToHostileGuests$$' -count=1 -v -timeout 30m
	cd services && go test ./wasmagent/internal/worker -run '^$$' -bench Deadline -benchtime 50x

NEIGHBOURS ?= 2s

.PHONY: servers
servers: ## List many servers of a hundred tools each, show a page, decide by category, and start anew (SERVERS=1000)
	cd services && SLUICE_SERVERS=$(SERVERS) go test ./e2e -run 'TestManyServers_AreListedAndCallsAreDecidedByClass$$' -count=1 -v -timeout 30m

SERVERS ?= 1000

.PHONY: many
many: ## Make many agents and time their prompts, asleep and awake (MANY=10000)
	cd services && SLUICE_MANY=$(MANY) go test ./wasmagent -run 'TestMany(Agents|Prompts)_' -count=1 -v -timeout 60m

MANY ?= 10000

.PHONY: faults
faults: build ## Take TURNS turns of agents whose model fails in every way, by a seed (TURNS=1000 SEED=1)
	cd services && SLUICE_TURNS=$(TURNS) SLUICE_SEED=$(SEED) go test ./e2e -run 'TestModelFaults_NoTurnLosesOrRepeatsACall$$' -count=1 -v -timeout 60m

TURNS ?= 1000
SEED  ?= 1

.PHONY: failpoints
failpoints: ## Kill the mesh at each failpoint with SEEDS=200 seeds; goes on where it was stopped
	@mkdir -p $(dir $(REPORT))
	@echo "each seed is a line of $(REPORT); $(REPORT).log has what was said"
	@cd services && { SLUICE_SEEDS=$(SEEDS) SLUICE_REPORT=$(REPORT) go test ./e2e -run 'TestFailpoints_ApprovedCallsSurviveAKillAtEachPoint$$' -count=1 -timeout 6h -v >>$(REPORT).log 2>&1 || came=$$?; \
		tail -n 1 $(REPORT); exit $${came:-0}; }

SEEDS  ?= 200
REPORT ?= $(CURDIR)/.cache/failpoints.txt

.PHONY: hostile
hostile: build ## Let agents, servers and strangers do their worst for an hour beside one that behaves (HOSTILE=1h ATTACKS=regexp)
	cd services && SLUICE_HOSTILE=$(HOSTILE) SLUICE_ATTACKS='$(ATTACKS)' go test ./e2e/hostile -count=1 -v -timeout 2h

HOSTILE ?= 1h
ATTACKS ?=

.PHONY: matrix
matrix: npm build ## Let every real client meet every real server (make test tries a quarter of the pairs)
	cd services && SLUICE_MATRIX=all go test ./e2e -run 'TestMatrix_ClientsUseServers$$' -count=1 -v -timeout 60m

.PHONY: redeem
redeem: ## Let 200 callers have one approved call, 100 times: on both stores, and through the mesh
	cd services && SLUICE_REDEEMS=100 go test ./approval/internal/store ./e2e \
		-run 'TestClaim_OneOf200ConcurrentClaimsSucceeds|TestRetries_ApprovedCallReachesTheServerOnce' -count=1 -v -timeout 30m

.PHONY: npm
npm: ## Install what tests need from npm (Node 22, SDKs, real MCP servers) into a cache
	cd services && go run ./e2e/npm/cmd/npm-warm

READERS ?= 10000000
.PHONY: readers
readers: ## Readers in Go, Node and Python read READERS messages that the gate lets through
	cd services && go test ./gateway/internal/jsonrpc -run TestReadersAgree -messages $(READERS) -timeout 2h -count=1 -v

.PHONY: lint
lint: $(VALIDATE) ## Go and proto style, import rules
	$(BUF) lint
	$(BUF) format proto --diff --exit-code
	$(LINT) run $(PATTERN)

.PHONY: generate
generate: $(VALIDATE) ## Rebuild gen/ from proto/
	find gen examples/notes/gen -name '*.pb.go' -delete
	$(BUF) generate
	$(BUF) generate --template examples/notes/buf.gen.yaml

.PHONY: docs
docs: ## Write the generated pages and lists of docs/; make test fails when they are out of date
	cd services && go test ./internal/arch ./sluice/internal/cli -run '^(TestConfigurationPage|TestCommandPage_MatchesTheCommands|TestSecurityCases)$$' -count=1 -update

.PHONY: generated
generated: generate ## Fail when gen/ is not what generate makes
	git diff --exit-code -- gen examples/notes/gen
	@test -z "$$(git status --porcelain -- gen examples/notes/gen)" || { git status --short -- gen examples/notes/gen; exit 1; }

.PHONY: breaking
breaking: $(VALIDATE) ## Fail when proto/ breaks a client of the contracts
	$(BUF) breaking proto --against $(CONTRACTS)

.PHONY: contracts
contracts: $(VALIDATE) ## Renew the image that breaking compares with; only for a change that is meant
	$(BUF) build proto -o $(CONTRACTS)

.PHONY: bench
bench: build peers ## Measure the whole path against its floor and write docs/benchmarks.md
	cd services && go run ./bench/cmd/bench $(ARGS)

# Of this version all modules can be had, and it builds with this Go.
TOOLHIVE := v0.47.0

.PHONY: peers
peers: .cache/peers/$(TOOLHIVE) ## Build the gateways of others that are measured beside this one

.cache/peers/$(TOOLHIVE):
	GOBIN=$(CURDIR)/.cache/peers go install $(foreach program,thv vmcp,github.com/stacklok/toolhive/cmd/$(program)@$(TOOLHIVE))
	@touch $@

.PHONY: growth
growth: ## Measure what grows with rules, servers, keys, sessions and calls, for docs/growth.md
	cd services && go test ./policy/internal/engine -run '^$$' -bench 'Decide$$'
	cd services && go test ./policy -run '^$$' -bench 'ThousandServers$$'
	cd services && go test ./ratelimit/internal/store -run '^$$' -bench 'Granted$$'
	cd services && go test ./bench -run '^$$' -bench IdleSession -benchtime 4000x
	cd services && go test ./bench -run '^$$' -bench CallInFlight -benchtime 1x

.PHONY: callpath
callpath: ## List the functions that an allowed call runs in the gateway, and count their lines
	cd services && go run ./bench/callpath

.PHONY: codestats
codestats: ## Print measurements of the code and the documents, with the goal for each
	@go run ./services/bench/codestats

.PHONY: base
base: ## Build the programs of the commit BASE into .cache/base/bin, for make bench ARGS="-base ../.cache/base/bin"
	@test -d .cache/base || { git worktree prune; git worktree add --detach .cache/base $(BASE); }
	@git -C .cache/base checkout -q --detach $(BASE)
	$(MAKE) -C .cache/base build

BASE   ?= HEAD~1
ROUNDS ?= 10

.PHONY: bench-diff
bench-diff: base ## Measure a call in one process with BASE's code and with this one's, in turn (ROUNDS=10)
	rm -rf .cache/base/services/bench
	cp -r services/bench .cache/base/services/bench
	cd .cache/base/services && go test -c -o ../../before.test ./bench
	cd services && go test -c -o ../.cache/after.test ./bench
	@git -C .cache/base checkout -q . && git -C .cache/base clean -fdq services
	@rm -f .cache/before.txt .cache/after.txt
	@cd .cache; for round in $$(seq $(ROUNDS)); do for side in before after; do \
		./$$side.test -test.run '^$$' -test.bench Call -test.benchtime 30000x >>$$side.txt; done; done
	$(BENCHSTAT) before=.cache/before.txt after=.cache/after.txt

.PHONY: fuzz
fuzz: ## Fuzz the strict gate, and the readers of paths and URLs (FUZZTIME=10m each)
	cd services && go test ./gateway/internal/jsonrpc -run '^$$' -fuzz 'FuzzParse$$' -fuzzminimizetime 20x -fuzztime $(FUZZTIME)
	cd services && for target in FuzzP14PathWithin FuzzP14URL FuzzP14EmailDomain; do \
		go test ./policy/internal/locator -run '^$$' -fuzz "$$target"'$$' -fuzzminimizetime 20x -fuzztime $(FUZZTIME); done

FUZZTIME ?= 10m

.PHONY: e2e-compose
e2e-compose: npm ## The same stories against docker compose; needs a Docker engine
	cd services && go test -tags compose -count=1 -v -timeout 30m ./e2e/compose/...

# validate.proto comes out of its Go module, so that buf needs no registry.
$(VALIDATE): Makefile
	@mkdir -p $(@D)
	@dir=$$(go mod download -json $(PROTOVALIDATE) | sed -n 's/.*"Dir": "\(.*\)".*/\1/p'); \
		install -m 644 "$$dir/proto/protovalidate/buf/validate/validate.proto" $@
