# `make help` lists the targets. They need Go, npm of Node and git. The Go command downloads the other tools, whose
# versions are set here, when a target first uses them.
SHELL         := bash
.SHELLFLAGS   := -euo pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS     += --warn-undefined-variables --no-builtin-rules

BUF           := go run github.com/bufbuild/buf/cmd/buf@v1.69.0
LINT          := go run github.com/golangci/golangci-lint/v2/cmd/golangci-lint@v2.15.0
PROGRAMS      := $(filter-out ./bench/%,$(patsubst services/%,./%,$(wildcard services/*/cmd/*)))
GORELEASER    := go run github.com/goreleaser/goreleaser/v2@v2.16.0
BENCHSTAT     := go run golang.org/x/perf/cmd/benchstat@v0.0.0-20260908200009-22c9c6c9d4da
PROTOVALIDATE := github.com/bufbuild/protovalidate@v1.2.2
VALIDATE      := .cache/proto/buf/validate/validate.proto
CONTRACTS     := proto/contracts.binpb

# The modules of go.work, for tools that do not know the "work" pattern.
MODULES = $(shell go list -m -f '{{.Dir}}')
PATTERN = $(addsuffix /...,$(MODULES))
ARGS    ?=
# The race detector does not watch SQLite, which has no goroutines and is ten times slower when it is watched.
RACE    ?= -race -gcflags=modernc.org/sqlite/lib=-race=false

.PHONY: help
help: ## List the targets
	@awk -F ':.*## ' '/^[a-z][a-z0-9-]*:.*## / {printf "  %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: up
up: guests ## Build the program with all services, and run the mesh in one process (ARGS="--config FILE")
	@mkdir -p bin
	cd services && go build -trimpath -o ../bin/ ./sluice/cmd/sluice
	bin/sluice up $(ARGS)

GUESTS := $(notdir $(wildcard sdk/guests/*))

.PHONY: guests
guests: ## Build the guests that are part of the programs
	@cd sdk && for guest in $(GUESTS); do GOOS=wasip1 GOARCH=wasm go build -trimpath -buildvcs=false -buildmode=c-shared -ldflags='-s -w' \
		-o ../services/wasmagent/internal/modules/dist/$$guest.wasm ./guests/$$guest; done
	@cd services && go run -trimpath ./wasmagent/internal/modules/pack wasmagent/internal/modules/dist

.PHONY: build
build: guests ## Build every program into bin/
	@mkdir -p bin
	cd services && go build -trimpath -o ../bin/ $(PROGRAMS)

.PHONY: check
check: generated breaking lint test ## Run everything that CI runs, in the same order

# Programs that some tests start. Tests whose program is missing are skipped, and `make test` says so first.
PROGRAMS_OF_TESTS := chromium nginx haproxy python3 initdb dbus-daemon gnome-keyring-daemon curl
MISSING = $(foreach p,$(PROGRAMS_OF_TESTS),$(if $(shell PATH="$$PATH:$${PG_BIN:-}:$$(echo /usr/lib/postgresql/*/bin | tr ' ' :)"; command -v $(p)),,$(p)))

.PHONY: missing
missing:
	@$(if $(strip $(MISSING)),echo "skipped: tests that start $(strip $(MISSING)) (Debian: apt-get install chromium nginx-light haproxy python3 postgresql dbus-daemon gnome-keyring curl)",true)

STRESS  ?= 0
RETRIES ?= 0

.PHONY: test
test: missing npm build ## Run every test that needs no Docker, with the race detector (RACE= omits it, STRESS=n adds n busy loops, RETRIES=n tests up to n failed packages once more)
	@mkdir -p .cache
	rm -rf bin/compiled-guests
	rm -f .cache/test-slots; mkfifo .cache/test-slots; exec 7<>.cache/test-slots; printf 12 >&7; \
	trap 'kill $$(jobs -p) 2>/dev/null || true' EXIT; for loop in $$(seq $(STRESS)); do while :; do :; done & done; \
		export SLUICE_TEST_PROGRAMS=$(CURDIR)/bin GORACE=atexit_sleep_ms=0 SLUICE_TEST_NO_BROWSER=$(if $(findstring chromium,$(MISSING)),1) \
		SLUICE_TEST_NO_POSTGRES=$(if $(findstring initdb,$(MISSING)),1); came=0; \
		run() { log=.cache/test-$$1.log; shift; packages=$$1; shift; \
			go test $(SLOTS) "$$@" $$packages 2>&1 | tee $$log || services/e2e/retest.sh $(RETRIES) $$log "$$@" || came=$$?; }; \
		run units "$$(go list work | grep -v -e /services/e2e $(SEQUENTIAL:%=-e '/services/%$$'))" $(BUILT) -parallel 3 $(RACE) -timeout 25m; \
		run seeded "$(SEEDED:%=./services/%)" $(BUILT) -run 'Seeded|EveryByte|Thousands' -parallel 16 -trimpath -timeout 10m; \
		run stories "$$(echo $(SEQUENTIAL:%=./services/%); go list work | grep /services/e2e)" $(BUILT) -parallel 4 -trimpath -timeout 40m; \
		exit $$came

# -vet=off: `make lint` vets. -ldflags=-w: without debugging information, linking takes half of the time.
# SLOTS: two packages are tested at a time, because many tests wait for events. The next packages are built meanwhile.
# -parallel: each package runs 3 tests at a time, or 4 tests that start whole meshes.
# The packages in SEQUENTIAL are tested without the race detector, because they have no concurrency; a test of
# internal/arch checks that. The packages of e2e are too, because they test programs in processes of their own.
SEQUENTIAL := approval/internal/lifecycle approval/internal/view bench/cmd/bench bench/codestats gateway/internal/aggregate gateway/internal/jsonrpc gateway/internal/mcp gateway/internal/mcpschema gateway/internal/meters gateway/internal/npx gateway/internal/paramheaders gateway/internal/programs gateway/internal/question gateway/internal/spans identity/internal/seal internal/arch internal/binding internal/canonicaljson internal/config internal/datadir internal/detect internal/enum internal/homeneeds internal/hosttools internal/issuer internal/loopback internal/mcpmethod internal/observe internal/principal internal/publicname internal/redact internal/secretcommand internal/signeddecision internal/strictprotojson internal/strictyaml internal/valuepath policy/internal/advice policy/internal/catalog policy/internal/classify policy/internal/dialect policy/internal/document policy/internal/engine policy/internal/inputschema policy/internal/locator policy/internal/propose policy/internal/store ratelimit/internal/window release sluice/internal/clientconfig sluice/internal/configedit sluice/internal/hookevent sluice/internal/hooksetup sluice/internal/localconfig sluice/internal/personal sluice/internal/regularfile sluice/internal/running sluice/internal/secretstore sluice/internal/userservice wasmagent/internal/abi wasmagent/internal/archive wasmagent/internal/events wasmagent/internal/files wasmagent/internal/inventory wasmagent/internal/manifest wasmagent/internal/models wasmagent/internal/modules wasmagent/internal/wasmmeter
# The tests in these packages whose names contain Seeded, EveryByte or Thousands check only a tenth of their cases with
# the race detector, and all cases without it. They call norace.Some, which says how many; a test of internal/arch checks
# that.
SEEDED := gateway/internal/accesstoken identity internal/journal policy
BUILT := -vet=off -ldflags=-w
SLOTS := -p 4 -exec "$(CURDIR)/services/e2e/test-slot.sh $(CURDIR)/.cache/test-slots"

.PHONY: recording
recording: build ## Record the picture of the first minute in README.md again
	python3 docs/images/first-minute.py bin >.cache/first-minute.cast
	npx --yes svg-term-cli@2.1.1 --in .cache/first-minute.cast --out docs/images/first-minute.svg --window --no-cursor --width 110 --height 30

RUN ?=
N   ?=

.PHONY: stress
stress: $(if $(RUN),build) ## Run one stress test (RUN=name, N=value); without RUN, list the stress tests
	@SLUICE_TEST_PROGRAMS=$(CURDIR)/bin services/e2e/stress.sh $(RUN) $(N)

.PHONY: npm
npm: ## Install what tests need from npm into a cache: Node 22, SDKs and MCP servers
	cd services && go run ./e2e/npm/cmd/npm-warm

CLIENTS := @anthropic-ai/claude-code@2.1.332 @openai/codex@0.171.0 opencode-ai@1.18.33 cline@3.0.65 \
	@github/copilot@1.0.102 @google/gemini-cli@0.61.0

.PHONY: test-clients
test-clients: build ## Install six MCP clients from npm (2 GB), and test them behind a mesh and with hooks
	npm install --prefix $(CURDIR)/.cache/clients --ignore-scripts --no-audit --no-fund --silent $(CLIENTS)
	cd services && SLUICE_TEST_PROGRAMS=$(CURDIR)/bin SLUICE_TEST_CLIENTS=$(CURDIR)/.cache/clients/node_modules \
		go test -count=1 -v -timeout 20m -run TestRealClients ./sluice/internal/clientconfig ./e2e/realclients ./e2e/hook

.PHONY: lint
lint: $(VALIDATE) ## Check the style of Go and proto files, and the import rules
	$(BUF) lint
	$(BUF) format proto --diff --exit-code
	$(LINT) run $(PATTERN)

.PHONY: generate
generate: $(VALIDATE) ## Generate gen/ from proto/
	find gen examples/notes/gen -name '*.pb.go' -delete
	$(BUF) generate
	$(BUF) generate --template examples/notes/buf.gen.yaml

.PHONY: docs
docs: ## Write the generated pages and lists of docs/, which `make test` compares with the code
	cd services && go test ./internal/arch ./sluice/internal/cli -run '^(TestConfigurationPage|TestCommandPage_MatchesTheCommands|TestSecurityCases)$$' -count=1 -update
	cd services && go test ./policy/internal/document -run '^TestSchema_IsWhatTheExamplesName$$' -count=1 -update

.PHONY: generated
generated: generate ## Fail if gen/ differs from what `make generate` writes
	git diff --exit-code -- gen examples/notes/gen
	@test -z "$$(git status --porcelain -- gen examples/notes/gen)" || { git status --short -- gen examples/notes/gen; exit 1; }

.PHONY: breaking
breaking: $(VALIDATE) ## Fail if a change of proto/ breaks clients of the contracts
	$(BUF) breaking proto --against $(CONTRACTS)

.PHONY: contracts
contracts: $(VALIDATE) ## Renew the image that `make breaking` compares with, after a change that is meant to break clients
	$(BUF) build proto -o $(CONTRACTS)

.PHONY: bench
bench: build peers ## Measure calls through the whole mesh, and write docs/benchmarks.md (ARGS="-quick": a short run, no page)
	cd services && go run ./bench/cmd/bench $(ARGS)

# All modules of this version can be downloaded, and it builds with the Go version of this project.
TOOLHIVE := v0.47.0

.PHONY: peers
peers: .cache/peers/$(TOOLHIVE) ## Build the other gateways that `make bench` measures

.cache/peers/$(TOOLHIVE):
	GOBIN=$(CURDIR)/.cache/peers go install $(foreach program,thv vmcp,github.com/stacklok/toolhive/cmd/$(program)@$(TOOLHIVE))
	@touch $@

.PHONY: growth
growth: ## Measure how costs grow with rules, servers, keys, sessions and calls, for docs/growth.md
	cd services && go test ./policy/internal/engine -run '^$$' -bench 'Decide$$|DecideParsed$$|ParseArguments$$'
	cd services && go test ./policy -run '^$$' -bench 'ThousandServers$$|ServiceDecideCall$$'
	cd services && go test ./ratelimit/internal/store -run '^$$' -bench 'Granted$$'
	cd services && go test ./bench -run '^$$' -bench IdleSession -benchtime 4000x
	cd services && go test ./bench -run '^$$' -bench CallInFlight -benchtime 1x

.PHONY: compare
compare: ## Measure decisions of Cerbos and OPA with the rules of the engine's benchmark, for docs/growth.md
	cd services && go test ./policy/internal/engine -run '^$$' -bench LikePeers
	cd services/bench/compare/cerbos && GOWORK=off go test -run '^$$' -bench .
	cd services/bench/compare/opa && GOWORK=off go test -run '^$$' -bench .

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
bench-diff: base ## Measure a call in one process, in turn with the code of BASE and with the current code (ROUNDS=10)
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
fuzz: ## Fuzz the strict parser, the parsers of paths and URLs, conditions and decisions, for FUZZTIME=10m each
	cd services && go test ./gateway/internal/jsonrpc -run '^$$' -fuzz 'FuzzParse$$' -fuzzminimizetime 20x -fuzztime $(FUZZTIME)
	cd services && for target in FuzzP14PathWithin FuzzP14URL FuzzP14EmailDomain; do \
		go test ./policy/internal/locator -run '^$$' -fuzz "$$target"'$$' -fuzzminimizetime 20x -fuzztime $(FUZZTIME); done
	cd services && go test ./policy/internal/condition -run '^$$' -fuzz 'FuzzCompile$$' -fuzzminimizetime 20x -fuzztime $(FUZZTIME)
	cd services && go test ./policy/internal/engine -run '^$$' -fuzz 'FuzzDecide$$' -fuzzminimizetime 20x -fuzztime $(FUZZTIME)

FUZZTIME ?= 10m

.PHONY: e2e-compose
e2e-compose: npm ## Run the tests of the deployment with docker compose, which need a Docker engine
	cd services && go test -tags compose -count=1 -v -timeout 30m ./e2e/compose/...

# validate.proto is copied from its Go module, so that buf needs no registry.
$(VALIDATE): Makefile
	@mkdir -p $(@D)
	@dir=$$(go mod download -json $(PROTOVALIDATE) | sed -n 's/.*"Dir": "\(.*\)".*/\1/p'); \
		install -m 644 "$$dir/proto/protovalidate/buf/validate/validate.proto" $@

# VERSION is the version of a release, such as 0.1.0. KEY is the file of the SSH key that signs it. UNSIGNED=1 builds
# without a key.
VERSION  ?=
KEY      ?=
UNSIGNED ?=
SIGNERS  := docs/release-signers

.PHONY: release
release: ## Build and sign a release in dist/release, publish nothing (VERSION=0.1.0 KEY=FILE, or UNSIGNED=1)
	@services/release/ready.sh "$(VERSION)" "$(KEY)" "$(UNSIGNED)"
	$(MAKE) guests
	export RELEASE_VERSION=$(VERSION) RELEASE_COMMIT=$$(git rev-parse HEAD) RELEASE_TIME=$$(git show -s --format=%ct HEAD) \
		RELEASE_DATE=$$(TZ=UTC0 git show -s --date=format-local:%Y-%m-%dT%H:%M:%SZ --format=%cd HEAD); \
		$(GORELEASER) release --snapshot --clean --skip=publish; \
		cd services; go run ./release packages ../dist "$$RELEASE_VERSION" "$$RELEASE_COMMIT" "$$RELEASE_DATE"
	@$(if $(KEY),services/release/sign.sh "$(KEY)" dist/release $(SIGNERS),echo "dist/release is not signed: do not publish it")

.PHONY: release-key
release-key: ## Make the key that signs releases (KEY=FILE), and write its public key to docs/release-signers
	@test -n "$(KEY)" || { echo "KEY is not set: run make release-key KEY=FILE"; exit 1; }
	@services/release/newkey.sh "$(KEY)" $(SIGNERS)

.PHONY: test-release
test-release: ## Install dist/release in each way in an empty root directory, and make calls (VERSION=0.1.0)
	@test -n "$(VERSION)" || { echo "VERSION is not set: run make test-release VERSION=0.1.0"; exit 1; }
	rm -rf .cache/modules
	cd services && go run ./release modules v$(VERSION) $$(release/commit.sh $(VERSION)) ../.cache/modules
	services/e2e/release/try.sh dist/release .cache/modules $(VERSION)

# `go mod tidy` does not use go.work, and the required version of gen may not be published yet.
.PHONY: tidy
tidy: ## Tidy services/go.mod
	cd services && go mod edit -replace github.com/sluice-mesh/sluice/gen=../gen
	cd services && trap 'go mod edit -dropreplace github.com/sluice-mesh/sluice/gen' EXIT; go mod tidy
