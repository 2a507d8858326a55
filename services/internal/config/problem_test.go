package config_test

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v4"

	"github.com/sluice-mesh/sluice/services/internal/config"
)

// load loads a configuration and returns the problems, one per line, without the file's directory.
func load(t *testing.T, text string) []string {
	t.Helper()
	path := write(t, text)
	_, err := config.Load(path, noEnv)
	if err == nil {
		return nil
	}
	return strings.Split(strings.ReplaceAll(err.Error(), path, "sluice.yaml"), "\n")
}

// Load refuses the value in each of these files. Each message contains the position and, if possible, a suggestion.
func TestLoad_ReportsProblemOfEachKey(t *testing.T) {
	t.Parallel()
	token := func(fields string) string { return "auth: {tokens: [{name: a, token: x, role: agent" + fields + "}]}" }
	server := func(fields string) string { return "servers: {s: {" + fields + "}}" }
	long := strings.Repeat("a", 300)
	tests := []struct{ text, want string }{
		{"listen: 8080", "1:9: listen: wanted text, found a number; put it in quotes"},
		{`listen: "8080"`, `1:9: listen: "8080" is not an address such as 127.0.0.1:8080`},
		{`listen: ""`, `1:9: listen: "" is not an address such as 127.0.0.1:8080`},
		{"grpc: localhost", `1:7: grpc: "localhost" is not an address such as 127.0.0.1:8080`},
		{`data: ""`, `1:7: data: is empty: name a folder`},
		{`hosts: [""]`, `1:9: hosts[0]: "" is not a name such as mcp.example.com: lower case, without a port`},
		{`hosts: [a, "*"]`, `1:12: hosts[1]: "*" is not a name`},
		{`hosts: ["mcp.example.com:443"]`, `hosts[0]: "mcp.example.com:443" is not a name`},
		{`hosts: [MCP.example.com]`, `hosts[0]: "MCP.example.com" is not a name such as mcp.example.com: lower case`},
		{`origins: [app.example.com]`, `1:11: origins[0]: "app.example.com" is not an origin such as https://app.example.com`},
		{`origins: ["https://app.example.com/"]`, "is not an origin"},
		{`origins: ["*"]`, "is not an origin"},
		{`auth: {tokens: [{name: "a b", token: x, role: agent}]}`, `auth.tokens[0].name: "a b" is not a name of 1 to 128 letters, digits, or _ . @ -`},
		{`auth: {tokens: [{token: x, role: agent}]}`, `auth.tokens[0].name: "" is not a name`},
		{`auth: {tokens: [{name: a, token: x, role: agent}, {name: a, token: y, role: agent}]}`, `auth.tokens[1].name: "a" is the name of two tokens`},
		{`auth: {tokens: [{name: a, role: agent}]}`, "auth.tokens[0]: set exactly one of token and sha256"},
		{token(", sha256: y"), "auth.tokens[0]: set exactly one of token and sha256"},
		{`auth: {tokens: [{name: a, token: "", role: agent}]}`, "auth.tokens[0]: set exactly one of token and sha256"},
		{token(`, tenant: "A"`), `auth.tokens[0].tenant: "A" is not a name of 1 to 64 lower-case letters, digits or -`},
		{token(", subject: " + long), "auth.tokens[0].subject: 300 bytes are more than 256"},
		{token(", subject: \"agent:default/a1\""), "auth.tokens[0].subject: \"agent:default/a1\" is a subject that only the mesh makes"},
		{token(", subject: \"act:corp/bot/corp/ana\""), "auth.tokens[0].subject: \"act:corp/bot/corp/ana\" is a subject that only the mesh makes"},
		{token(", owner: " + long), "auth.tokens[0].owner: 300 bytes are more than 256"},
		{token(", agent: " + long[:129]), "auth.tokens[0].agent: 129 bytes are more than 128"},
		{token(`, groups: [""]`), "auth.tokens[0].groups[0]: is not a name of 1 to 128 bytes"},
		{token(", groups: [" + long[:129] + "]"), "auth.tokens[0].groups[0]: is not a name of 1 to 128 bytes"},
		{token(", groups: [a, b, a]"), `auth.tokens[0].groups[2]: "a" is listed twice`},
		{token(", groups: [" + numbers(257) + "]"), "auth.tokens[0].groups: 257 groups are more than 256"},
		{`auth: {tokens: [{name: a, token: x}]}`, `auth.tokens[0].role: "" is not one of agent, operator, approver, viewer`},
		{`auth: {tokens: [{name: a, token: x, role: admin}]}`, `auth.tokens[0].role: "admin" is not one of agent, operator, approver, viewer`},
		{`groups: {finance: []}`, "1:10: groups.finance: is empty: name subjects, or remove it"},
		{`groups: {finance: [ana], finance: [ben]}`, `1:26: groups: the key "finance" occurs twice; keep one of them`},
		{`groups: {"": [ana]}`, `groups[""]: is not a name of 1 to 128 bytes without control characters`},
		{`groups: {` + long[:129] + `: [ana]}`, "is not a name of 1 to 128 bytes without control characters"},
		{`groups: {"a\tb": [ana]}`, `groups["a\tb"]: is not a name of 1 to 128 bytes without control characters`},
		{`groups: {"a.b": [ana, ben, ana]}`, `1:28: groups["a.b"][2]: "ana" is listed twice`},
		{`groups: {finance: [""]}`, "groups.finance[0]: is not a subject of 1 to 256 bytes without control characters"},
		{`groups: {finance: [` + long + `]}`, "groups.finance[0]: is not a subject of 1 to 256 bytes without control characters"},
		{`groups: {finance: ana}`, "groups.finance: wanted a list, found text; put it in [ ]"},
		{"{groups: {more: [a]}, " + token(", groups: ["+numbers(256)+"]") + "}", "auth.tokens[0]: 257 groups, with those of `groups`, are more than 256"},
		{`roles: {limiter: {listen: ":1"}}`, "1:9: roles.limiter: is not a role: use approval, gateway, identity, policy, ratelimit, wasmagent"},
		{`roles: {policy: {listen: "9001"}}`, `roles.policy.listen: "9001" is not an address`},
		{`roles: {policy: {addr: policy}}`, `roles.policy.addr: "policy" is not an address`},
		{`listen: ":8080"`, "1:9: listen: :8080: MCP without TLS is served only on loopback: set listen_tls, list the proxies that speak TLS for it under behind_proxy, or listen on 127.0.0.1"},
		{`listen: "0.0.0.0:8080"`, "MCP without TLS is served only on loopback"},
		{`listen: "[::]:8080"`, "MCP without TLS is served only on loopback"},
		{`listen: mcp.example.com:8080`, "MCP without TLS is served only on loopback"},
		{`listen_tls: {cert: mcp.pem}`, "1:1: listen_tls: set both cert and key, or neither"},
		{`behind_proxy: [proxy]`, `1:16: behind_proxy[0]: "proxy" is not an address such as 10.0.0.7, or a network such as 10.0.0.0/8`},
		{`behind_proxy: [10.0.0.7/8]`, `behind_proxy[0]: "10.0.0.7/8" is not an address`},
		{`behind_proxy: [0.0.0.0/0]`, `behind_proxy[0]: "0.0.0.0/0" is every address: list only the proxies`},
		{`behind_proxy: ["::/0"]`, `behind_proxy[0]: "::/0" is every address`},
		{`behind_proxy: [10.0.0.0/33]`, `behind_proxy[0]: "10.0.0.0/33" is not an address`},
		{`behind_proxy: ["fe80::1%eth0"]`, `behind_proxy[0]: "fe80::1%eth0" is not an address`},
		{`behind_proxy: ["::ffff:10.0.0.0/104"]`, `behind_proxy[0]: "::ffff:10.0.0.0/104" is not an address`},
		{`journal: {sync: sometimes}`, `journal.sync: "sometimes" is not one of never, always`},
		{`journal: {sync: ""}`, `journal.sync: "" is not one of never, always`},
		{`journal: {calls_mib: 63}`, "journal.calls_mib: 63 is not between 64 and 1048576"},
		{`journal: {share: 0}`, "journal.share: 0 is not above 0 and at most 1"},
		{`journal: {arguments: {retention: 30m}}`, "journal.arguments.retention: 30m0s is not between 1h0m0s and 2160h0m0s"},
		{`journal: {arguments: {mib: 1}}`, "journal.arguments.mib: 1 is not between 16 and 1048576"},
		{`servers: {a: {http: {url: "http://a"}, record: {arguments: all}}}`, `servers.a.record.arguments: "all" is unknown: write redacted, or remove the key`},
		{`journal: {share: 1.5}`, "journal.share: 1.5 is not above 0 and at most 1"},
		{`session: {idle: 1ms}`, "session.idle: 1ms is not between 1s and 720h0m0s"},
		{`session: {idle: 30}`, `session.idle: wanted a duration such as "30s", found a number "30"; write the unit too, for example 30s`},
		{`session: {max_per_principal: 0}`, "session.max_per_principal: 0 is not between 1 and 100000"},
		{`session: {cap: 0}`, "session.cap: 0 is not between 1 and 10000"},
		{`approvals: {hold: 1ms}`, "approvals.hold: 1ms is not between 1s and 10m0s"},
		{`approvals: {decide: 0s}`, "approvals.decide: 0s is not between 1s and 720h0m0s"},
		{`approvals: {execute: 1ms}`, "approvals.execute: 1ms is not between 1s and 720h0m0s"},
		{`approvals: {policy_changes: {}}`, "approvals.policy_changes: needs `policies: [store]`: policy files are changed outside of the mesh, so the mesh can't ask people to approve the changes"},
		{`{policies: [store], approvals: {policy_changes: {quorum: 0}}}`, "approvals.policy_changes.quorum: 0 is not between 1 and 16"},
		{`{policies: [store], approvals: {policy_changes: {quorum: 17}}}`, "approvals.policy_changes.quorum: 17 is not between 1 and 16"},
		{`{policies: [store], approvals: {policy_changes: {decide_within: 0s}}}`, "approvals.policy_changes.decide_within: 0s is not between 1s and 720h0m0s"},
		{`{policies: [store], approvals: {policy_changes: {execute_within: 721h}}}`, "approvals.policy_changes.execute_within: 721h0m0s is not between 1s and 720h0m0s"},
		{`{policies: [store], approvals: {policy_changes: {approvers: [a, a]}}}`, `approvals.policy_changes.approvers[1]: "a" is listed twice`},
		{`{policies: [store], approvals: {policy_changes: {approvers: [""]}}}`, "approvals.policy_changes.approvers[0]: is not a name of 1 to 128 bytes without control characters"},
		{`approvals: {max_pending: 0}`, "approvals.max_pending: 0 is not between 1 and 1000"},
		{`approvals: {max_asked: {max: 0}}`, "approvals.max_asked.max: 0 is not between 1 and 100000"},
		{`approvals: {max_asked: {max: 100001}}`, "approvals.max_asked.max: 100001 is not between 1 and 100000"},
		{`approvals: {max_asked: {window: 25h}}`, "approvals.max_asked.window: 25h0m0s is not between 1s and 24h0m0s"},
		{`session: {cap: -1}`, "session.cap: -1 is not between 1 and 10000"},
		{`telemetry: {sample: 1.1}`, "telemetry.sample: 1.1 is not between 0 and 1"},
		{`telemetry: {otlp: "localhost:4317"}`, `telemetry.otlp: "localhost:4317" is not a URL such as http://localhost:4317`},
		{`telemetry: {trust_parent: yes}`, "telemetry.trust_parent: wanted true or false, found text \"yes\"; write true"},
		{`servers: {My_Server: {http: {url: "http://localhost/mcp"}}}`, `servers.My_Server: "My_Server" is not a name of 1 to 32 lower-case letters, digits or -`},
		{server(""), "servers.s: set exactly one of http, stdio and grpc"},
		{"servers: {a: {grpc: {target: wasmagent}}, b: {grpc: {target: wasmagent}}}", `servers.b.grpc.target: "wasmagent" is the mesh's own service of agents, which is the server "a" already`},
		{"agents: {workers: 65}", "agents.workers: 65 is not between 1 and 64"},
		{"agents: {turns: {places: 65}}", "agents.turns.places: 65 is not between 1 and 64; 0 means the default"},
		{"agents: {turns: {places: 4, person_places: 5}}", "agents.turns.person_places: 5 is not between 1 and 4; 0 means the default"},
		{"agents: {questions: {queue: 5, person_queue: 6}}", "agents.questions.person_queue: 6 is not between 1 and 5; 0 means the default"},
		{"agents: {questions: {timeout: 2h}}", "agents.questions.timeout: 2h0m0s is not between 0s, which means the default, and 1h"},
		{"agents: {accept_keys: [abc]}", "agents.accept_keys[0]: is not an Ed25519 public key of 64 hexadecimal digits, as `sluice agents export` prints it"},
		{"agents: {providers: {p: {kind: other}}}", `agents.providers.p.kind: "other" is neither openai, which is for every provider with the chat completions API of OpenAI, nor anthropic`},
		{"agents: {providers: {script: {kind: openai}}}", `agents.providers.script: "script" is not a name of a provider: write 1 to 32 lower-case letters, digits or -; script is built in`},
		{`agents: {providers: {p: {kind: openai, url: "http://models.example.com/"}}}`, `agents.providers.p.url: "http://models.example.com/" is not an https URL; http is allowed on this machine only, because the key could be read on the network`},
		{`agents: {providers: {p: {kind: openai, prices: {m: {input: "x", output: "1"}}}}}`, `agents.providers.p.prices.m: input and output are amounts of US dollars for a million tokens, such as "1.25"`},
		{server(`http: {url: "http://localhost/mcp"}, stdio: {command: [x]}`), "servers.s: set exactly one of http, stdio and grpc"},
		{server(`grpc: {target: "localhost:1"}, stdio: {command: [x]}`), "servers.s: set exactly one of http, stdio and grpc"},
		{server(`http: {url: "http://h/mcp"}, pin: always`), `servers.s.pin: "always" is not one of first_use, review, off`},
		{server(`grpc: {target: policy}`), `servers.s.grpc.target: "policy" is neither wasmagent nor an address such as tools.example.com:443`},
		{server(`grpc: {target: ":443"}`), `servers.s.grpc.target: ":443" is neither wasmagent nor an address such as tools.example.com:443`},
		{server(`grpc: {target: wasmagent, plaintext: true}`), "servers.s.grpc: is the mesh's own service: remove all keys except target"},
		{server(`grpc: {target: "x:1", plaintext: true, ca: ca.pem}`), "servers.s.grpc: set plaintext, or the certificates to trust, not both"},
		{server(`grpc: {target: "x:1", headers: {grpc-timeout: x}}`), `servers.s.grpc.headers: "grpc-timeout" is not the name of metadata: lower-case letters, digits, - _ and ., and not grpc-`},
		{server(`http: {}`), `servers.s.http.url: "" is not a URL`},
		{server(`http: {url: "http://h/mcp", headers: {Host: x}}`), `servers.s.http.headers: "Host" has no effect, because the gateway writes it itself; write the host in url`},
		{server(`http: {url: "http://h/mcp", headers: {content-length: "3"}}`), `servers.s.http.headers: "content-length" has no effect, because the gateway writes it itself; remove it`},
		{server(`http: {url: "http://h/mcp", headers: {mcp-session-id: x}}`), `servers.s.http.headers: "mcp-session-id" has no effect, because the gateway writes it itself; remove it`},
		{server(`http: {url: "http://h/mcp", headers: {Accept-Encoding: gzip}}`), `servers.s.http.headers: "Accept-Encoding" would make the server compress its answers`},
		{server(`http: {url: "http://h/mcp", headers: {Mcp-Param-Region: x}}`), `servers.s.http.headers: "Mcp-Param-Region" has no effect`},
		{server(`http: {url: "http://h/mcp", headers: {Proxy-Authorization: x}}`), `servers.s.http.headers: "Proxy-Authorization" is for a proxy`},
		{server(`http: {url: "http://h/mcp", proxy: "http://p:3128"}`), `servers.s.http.proxy: has no effect, because a proxy is used only for https, with CONNECT`},
		{server(`http: {url: "http://h/mcp", proxy: env}`), `servers.s.http.proxy: has no effect`},
		{server(`http: {url: "http://h/mcp", ca: own.pem}`), `servers.s.http.ca: has no effect, because the server does not use TLS`},
		{server(`http: {url: "https://h/mcp", proxy: "socks5://p:1080"}`), `servers.s.http.proxy: is neither env nor the address of a proxy`},
		{server(`http: {url: "https://h/mcp", ca: "${file:x}"}`), `servers.s.http.ca: ${file:x} is not resolved here`},
		{server(`stdio: {command: [x], start: 1h}`), `servers.s.stdio.start: 1h0m0s is not between 1s and 30m0s`},
		{server(`stdio: {command: [npx, x], install: never}`), `servers.s.stdio.install: "never" is not one of once, each_start`},
		{server(`stdio: {command: [uvx, x], install: each_start}`), `servers.s.stdio.install: has no effect, because it is for the commands npx and npm exec: remove it`},
		{"log: {level: loud}", `log.level: "loud" is not one of debug, info, warn, error`},
		{server(`http: {url: "http://h/mcp", headers: {Accept: x}}`), `servers.s.http.headers: "Accept" has no effect, because the gateway writes it itself; remove it`},
		{server(`http: {url: "http://h/mcp", headers: {X-Key: x, x-key: y}}`), `servers.s.http.headers: "x-key" is listed twice, in different case; keep one`},
		{server(`http: {url: "http://h/mcp?key=${env:K}"}`), `servers.s.http.url: ${env:K} is not resolved here: put the value into headers, such as Authorization: "Bearer ${env:K}"`},
		{server(`http: {url: "http://${plain:HOST}/mcp"}`), `servers.s.http.url: ${plain:HOST} is not resolved here: put the value into headers`},
		{server(`stdio: {command: [x, "--token=${env:T}"]}`), `servers.s.stdio.command[1]: ${env:T} is not resolved here, and other users can see arguments: put the value into env, from which the program can read it`},
		{server(`stdio: {command: [x, -k, "${file:key}"]}`), `servers.s.stdio.command[2]: ${file:key} is not resolved here`},
		{server(`stdio: {command: [x], dir: "${env:D}"}`), `servers.s.stdio.dir: ${env:D} is not resolved here: write the path of the folder`},
		{server(`stdio: {command: [x], sandbox: {write: ["${env:D}"]}}`), `servers.s.stdio.sandbox.write[0]: ${env:D} is not resolved here: write the path itself`},
		{server(`grpc: {target: "${env:H}:443"}`), `servers.s.grpc.target: ${env:H} is not resolved here: write the address itself`},
		{server(`http: {url: "ftp://localhost/"}`), `servers.s.http.url: "ftp://localhost/" is not a URL`},
		{server(`stdio: {command: []}`), "servers.s.stdio.command: is empty: give the program and its arguments as a list"},
		{server(`stdio: {command: node server.js}`), "servers.s.stdio.command: wanted a list, found text; put it in [ ]"},
		{server(`stdio: {command: [x], per: session}`), `servers.s.stdio.per: "session" is not one of principal, shared`},
		{server(`stdio: {command: [x], sandbox: {mode: on}}`), `servers.s.stdio.sandbox.mode: "on" is not one of auto, required, off`},
		{server(`stdio: {command: [x], sandbox: {mode: off, network: false}}`), "servers.s.stdio.sandbox: is off, so the other keys have no effect"},
		{server(`stdio: {command: [x], sandbox: {read: [""]}}`), `servers.s.stdio.sandbox.read[0]: "" is not a path`},
		{server(`stdio: {command: [x], sandbox: {reads: [a]}}`), `did you mean "read"`},
		{server(`stdio: {command: [x], limits: {tasks: 5}}`), "servers.s.stdio.limits.tasks: 5 is not between 32 and 100000"},
		{server(`stdio: {command: [x], limits: {memory: 1MiB}}`), "servers.s.stdio.limits.memory: 1MiB is not between 16MiB and 1048576GiB"},
		{server(`stdio: {command: [x], limits: {disk: 5GB}}`), "is not a size such as 512MiB or 2GiB"},
		{server(`stdio: {command: [x], recycle: -1}`), "servers.s.stdio.recycle: -1 is not between 0 and 1000000"},
		{server(`stdio: {command: [x], dir: /srv, remove: [lock]}`), "servers.s.stdio.remove: is only for a private folder: remove it, or remove dir"},
		{server(`stdio: {command: [x], remove: [lock, ../lock]}`), `servers.s.stdio.remove[1]: "../lock" is not a path inside of the folder`},
		{server(`stdio: {command: [x], remove: [a/../lock]}`), `servers.s.stdio.remove[0]: "a/../lock" is not a path`},
		{server(`stdio: {command: [x], remove: [/lock]}`), `servers.s.stdio.remove[0]: "/lock" is not a path`},
		{server(`stdio: {command: [x], remove: [.]}`), `servers.s.stdio.remove[0]: "." is not a path`},
		{server(`stdio: {command: [x], remove: [""]}`), `servers.s.stdio.remove[0]: "" is not a path`},
		{server(`stdio: {command: [x], env: {"A=B": c}}`), `servers.s.stdio.env: "A=B" is not the name of a variable`},
		{server(`http: {url: "http://localhost/"}, unwrap: ruflo`), `servers.s.unwrap: "ruflo" is not one of claude-flow`},
		{server(`http: {url: "http://localhost/"}, timeout: 25h`), "servers.s.timeout: 25h0m0s is not between 1ms and 24h0m0s"},
		{server(`http: {url: "http://localhost/"}, timeout: -1s`), "servers.s.timeout: -1s is not between 1ms and 24h0m0s"},
	}
	for _, tt := range tests {
		t.Run(tt.want, func(t *testing.T) {
			t.Parallel()
			got := load(t, tt.text)
			if !slices.ContainsFunc(got, func(line string) bool {
				return strings.HasPrefix(line, "sluice.yaml:1:") && strings.Contains(line, tt.want)
			}) {
				t.Errorf("%s\n got %q\nwant %q", tt.text, got, tt.want)
			}
		})
	}
}

func numbers(n int) string {
	list := make([]string, n)
	for i := range list {
		list[i] = fmt.Sprintf("g%d", i)
	}
	return strings.Join(list, ", ")
}

// A file sets keys that only other versions support. Load refuses each key and names it in the message.
func TestLoad_RefusesUnsupportedKeysByName(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		`auth: {oidc: []}`:                `auth: "oidc" is not offered in this version; use auth.issuers`,
		`ratelimit: {redis: "redis://x"}`: `"ratelimit" is not offered in this version; remove it`,
	} {
		got := load(t, text)
		if !slices.ContainsFunc(got, func(line string) bool {
			return strings.HasPrefix(line, "sluice.yaml:1:") && strings.Contains(line, want)
		}) {
			t.Errorf("%s\n got %q\nwant %q", text, got, want)
		}
	}
}

func TestLoad_SuggestsOnlyExistingKeys(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"ratelimt: {}", "auth: {odic: []}"} {
		got := load(t, text)
		if len(got) == 0 {
			t.Errorf("%s loads", text)
		}
		for _, key := range []string{`"ratelimit"`, "oidc"} {
			if strings.Contains(strings.Join(got, "\n"), key) {
				t.Errorf("%s\n got %q, which suggests %s", text, got, key)
			}
		}
	}
}

// An unknown key is refused at every level, and the message suggests the closest key.
func TestLoad_RefusesUnknownKeys(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"listne: x":                       `sluice.yaml:1:1: unknown key "listne"; did you mean "listen"?`,
		"auth: {token: []}":               `auth: unknown key "token"; did you mean "tokens"?`,
		"telemetry:\n  sampel: 1":         `sluice.yaml:2:3: telemetry: unknown key "sampel"; did you mean "sample"?`,
		"servers:\n  s: {http: {uri: x}}": `servers.s.http: unknown key "uri"; did you mean "url"?`,
		"LISTEN: x":                       `unknown key "LISTEN"; did you mean "listen"?`,
	} {
		if got := load(t, text); !slices.ContainsFunc(got, func(line string) bool { return strings.Contains(line, want) }) {
			t.Errorf("%q\n got %q\nwant %q", text, got, want)
		}
	}
}

// Load refuses a value of the wrong kind for each key, and reports its position.
func TestLoad_RefusesValuesOfAnotherKind(t *testing.T) {
	t.Parallel()
	for path, kind := range keys(reflect.TypeFor[config.File](), "") {
		value := "{x: {y: z}}"
		if kind == reflect.Struct || kind == reflect.Map {
			value = "[x]"
		}
		text, want := nestValue(path, value)
		got := load(t, text)
		if !slices.ContainsFunc(got, func(line string) bool {
			return strings.Contains(line, want+": wanted ") && strings.HasPrefix(line, "sluice.yaml:")
		}) {
			t.Errorf("%s\n got %q, want a line on %s", text, got, want)
		}
	}
}

// keys maps the path of every key in a type of the configuration to the key's kind. In a path, [] stands for an item of
// a list, and * for an entry of a map.
func keys(of reflect.Type, path string) map[string]reflect.Kind {
	out := make(map[string]reflect.Kind)
	if reflect.PointerTo(of).Implements(reflect.TypeFor[yaml.Unmarshaler]()) {
		return map[string]reflect.Kind{path: reflect.String} // its own method says which kinds it accepts
	}
	switch of.Kind() {
	case reflect.Pointer:
		return keys(of.Elem(), path)
	case reflect.Slice, reflect.Map:
		step := "[]"
		if of.Kind() == reflect.Map {
			step = ".*"
		}
		maps.Copy(out, keys(of.Elem(), path+step))
	case reflect.Struct:
		for field := range of.Fields() {
			if key := field.Tag.Get("yaml"); key != "" {
				maps.Copy(out, keys(field.Type, path+"."+key))
			}
		}
	}
	if path != "" {
		out[path] = of.Kind()
	}
	return out
}

// nestValue returns a document in which the key at path has the value. It also returns the path in the form that
// messages use.
func nestValue(path, value string) (text, named string) {
	steps := strings.Split(strings.ReplaceAll(strings.TrimPrefix(path, "."), "[]", ".[]"), ".")
	for _, step := range steps {
		switch step {
		case "[]":
			text += "["
			named += "[0]"
		case "*":
			text += "{policy: "
			named += ".policy"
		default:
			text += "{" + step + ": "
			named += "." + step
		}
	}
	text += value
	for _, step := range slices.Backward(steps) {
		if step == "[]" {
			text += "]"
		} else {
			text += "}"
		}
	}
	return text, strings.TrimPrefix(named, ".")
}

func TestLoad_ReportsAllProblemsTogether(t *testing.T) {
	t.Parallel()
	got := load(t, "listen: x\ngrpc: y\nsession: {cap: 0}\nservers: {s: {}}\n")
	if len(got) != 4 {
		t.Errorf("%d problems are reported, want 4: %q", len(got), got)
	}
}
