package document_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-mesh/sluice/services/policy/internal/document"
	"github.com/sluice-mesh/sluice/services/policy/internal/engine"
)

// parse reads one document.
func parse(file string, text []byte) (engine.Document, error) {
	set, err := document.ParseSet([]document.File{{Path: file, Text: text}}, nil)
	if err != nil {
		return engine.Document{}, err
	}
	return set.Documents[0], nil
}

func TestParseReadsEveryKey(t *testing.T) {
	t.Parallel()
	const text = `
version: 1
name: everyday
server: claude-flow*
default: deny
tools:
  a.b/c: {rate_limit: {max: 10, window: 60}}
  held:
    action: require_approval
    reason: |
      two
      lines
    rate_limit:
      - {max: 1, window: 90s, per: [tool, session]}
      - {max: 1000000000, window: 366d, per: [tenant]}
    approvers: [finance, legal]
    quorum: 2
    decide_within: 1h
    execute_within: 90
    grant: {calls: 10, within: 7d, critical: true, where: decimal(args.sum) < decimal("100")}
    idempotent: true
  self: {action: require_approval, self_confirm: true}
rules:
  - name: r1
    match:
      tool: [create_*, drop]
      server: claude-flow-1
      agent: ci-?
      principal: ["*@example.com", 'a\*b']
      groups: [ops]
      tenant: acme
    action: hide
  - name: r2
    rate_limit: {max: 5, window: 1ms}
    action: deny
`
	got, err := parse("policies/x.yaml", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	want := engine.Document{
		Name: "everyday", Server: "claude-flow*", Default: engine.DefaultDeny,
		Rules: []engine.Rule{
			{
				Tool: "a.b/c", Action: engine.ActionAllow, Limits: []engine.RateLimit{{
					Max: 10, Window: time.Minute,
					Per: []engine.Dimension{engine.PerSession, engine.PerServer, engine.PerTool},
				}},
			},
			{
				Tool: "held", Action: engine.ActionRequireApproval, Reason: "two\nlines\n",
				Limits: []engine.RateLimit{
					{Max: 1, Window: 90 * time.Second, Per: []engine.Dimension{engine.PerTool, engine.PerSession}},
					{Max: engine.MaxLimit, Window: engine.MaxWindow, Per: []engine.Dimension{engine.PerTenant}},
				},
				Approvers: []string{"finance", "legal"}, Quorum: 2, DecideWithin: time.Hour, ExecuteWithin: 90 * time.Second,
				Grant:      engine.Grant{Calls: 10, Within: 7 * 24 * time.Hour, Critical: true, Where: `decimal(args.sum) < decimal("100")`},
				Idempotent: true,
			},
			{Tool: "self", Action: engine.ActionRequireApproval, SelfConfirm: true},
			{
				Name: "r1", Action: engine.ActionHide,
				Match: engine.Match{
					Tool: []string{"create_*", "drop"}, Server: []string{"claude-flow-1"}, Agent: []string{"ci-?"},
					Principal: []string{"*@example.com", `a\*b`}, Groups: []string{"ops"}, Tenant: []string{"acme"},
				},
			},
			{
				Name: "r2", Action: engine.ActionDeny,
				Limits: []engine.RateLimit{{Max: 5, Window: time.Millisecond, Per: []engine.Dimension{engine.PerSession}}},
			},
		},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("Parse (-want +got):\n%s", diff)
	}
}

func TestParseNamesADocumentAfterItsFile(t *testing.T) {
	t.Parallel()
	for file, want := range map[string]string{
		"claude-flow.yaml": "claude-flow", "/etc/sluice/policies/a.b.yml": "a.b", "base": "base",
	} {
		d, err := parse(file, []byte("version: 1\ndefault: deny"))
		if err != nil || d.Name != want {
			t.Errorf("Parse(%q) = %q, %v, want %q", file, d.Name, err, want)
		}
	}
}

func TestParseReadsEveryFormOfAWindow(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]time.Duration{
		"60": time.Minute, "60s": time.Minute, `"1h"`: time.Hour, "1d": 24 * time.Hour, "366d": engine.MaxWindow,
		"31622400": engine.MaxWindow, "1ms": time.Millisecond, "1h30m": 90 * time.Minute, "0.5s": 500 * time.Millisecond,
	} {
		d, err := parse("p.yaml", []byte("version: 1\ntools: {t: {rate_limit: {max: 1, window: "+text+"}}}"))
		if err != nil {
			t.Errorf("window: %s: %v", text, err)
			continue
		}
		if got := d.Rules[0].Limits[0].Window; got != want {
			t.Errorf("window: %s = %v, want %v", text, got, want)
		}
	}
}

// refusals are documents and what is said about them. Each line of text stands
// below `version: 1`, so that its number is one more.
var refusals = []struct {
	name, text, want string
}{
	// What the language has and this version does not.
	{"a condition", "rules:\n  - {name: r, when: args.draft != true, action: deny}",
		`p.yaml:3:15: rules[0]: "when" is not offered in this version; take it out`},
	{"tests", "default: deny\ntests:\n  - call: {tool: t}",
		`p.yaml:3:1: "tests" is not offered in this version; take it out`},
	{"a mode of the document and of a rule", "default: deny\nmode: observe\nrules: [{name: r, action: deny, mode: observe}]",
		"p.yaml:3:1: \"mode\" is not offered in this version; take it out\n" +
			`p.yaml:4:33: rules[0]: "mode" is not offered in this version; take it out`},
	{"what the catalogue knows", "rules:\n  - name: r\n    action: deny\n    match: {category: [write], risk: high, tags: x, annotations: {a: b}, method: '*'}",
		"p.yaml:5:70: rules[0].match.annotations.a: wanted true or false, found text \"b\"\n" +
			`p.yaml:5:74: rules[0].match: "method" is not offered in this version; take it out`},
	{"classes that are none", "rules:\n  - name: r\n    action: deny\n    match: {category: [write, Read, write], risk: severe, tags: [Big, x], annotations: {readonly: true}}",
		`p.yaml:5:31: rules[0].match.category[1]: "Read" is none; use read, write, execute, destructive, financial
p.yaml:5:37: rules[0].match.category[2]: stands there twice; keep one of them
p.yaml:5:51: rules[0].match.risk: "severe" is none; use low, medium, high, critical
p.yaml:5:66: rules[0].match.tags[0]: "Big" is no tag; tags are of 1 to 64 lower-case letters, digits and -
p.yaml:5:99: rules[0].match.annotations.readonly: is no annotation of a tool; use destructiveHint, idempotentHint, openWorldHint, readOnlyHint`},
	{"classes of nothing", "rules: [{name: r, action: deny, match: {category: [], annotations: {}}}]",
		"p.yaml:2:41: rules[0].match.category: is empty; it would match nothing: take it out, or name something\n" +
			"p.yaml:2:55: rules[0].match.annotations: is empty; take it out, or name one"},
	{"other kinds of limit", "tools:\n  t:\n    rate_limit: {max: 1, window: 1s, algorithm: gcra, burst: 2, max_in_flight: 1, cost: args.x, settle: r, repeat: {}}",
		"p.yaml:4:38: tools.t.rate_limit: \"algorithm\" is not offered in this version; take it out\n" +
			"p.yaml:4:55: tools.t.rate_limit: \"burst\" is not offered in this version; take it out\n" +
			"p.yaml:4:65: tools.t.rate_limit: \"max_in_flight\" is not offered in this version; take it out\n" +
			"p.yaml:4:83: tools.t.rate_limit: \"cost\" is not offered in this version; take it out\n" +
			"p.yaml:4:97: tools.t.rate_limit: \"settle\" is not offered in this version; take it out\n" +
			`p.yaml:4:108: tools.t.rate_limit: "repeat" is not offered in this version; take it out`},
	{"extras of entries", "tools:\n  t:\n    action: allow\n    redact: [a]\n    on_limiter_error: allow\n    timeout: 5s\n    forward: strict",
		"p.yaml:5:5: tools.t: \"redact\" is not offered in this version; take it out\n" +
			"p.yaml:6:5: tools.t: \"on_limiter_error\" is not offered in this version; take it out\n" +
			"p.yaml:7:5: tools.t: \"timeout\" is not offered in this version; take it out\n" +
			`p.yaml:8:5: tools.t: "forward" is not offered in this version; take it out`},
	{"a condition that is none", "tools: {t: {action: require_approval, grant: {calls: 2, within: 1h, critical: true, where: arg.x}}}",
		`p.yaml:2:92: tools.t.grant.where: character 1: undeclared reference to 'arg'; arguments are in args, for example args.amount`},
	{"P14 a condition that says less than it seems", "tools: {t: {action: require_approval, grant: {calls: 2, within: 1h, critical: true, where: 'args.path.startsWith(\"/srv\")'}}}",
		`p.yaml:2:92: tools.t.grant.where: character 21: startsWith is no test of a path: "/srv/../etc" begins with "/srv"; use path.within(x, "/srv"), path.base(x) or path.ext(x)`},
	{"extra arguments that something else happens to", "tools: {t: {action: require_approval, grant: {calls: 2, within: 1h, critical: true, where: args.n == 1, extra_args: deny}}}",
		`p.yaml:2:117: tools.t.grant.extra_args: unknown value "deny"; write allow, or take it out`},
	{"extra arguments of no condition", "tools: {t: {action: require_approval, grant: {calls: 2, within: 1h, critical: true, extra_args: allow}}}",
		`p.yaml:2:97: tools.t.grant.extra_args: has no use without where; take it out: the grant covers all calls of the tool`},
	{"an empty condition", "tools: {t: {action: require_approval, grant: {calls: 2, within: 1h, critical: true, where: ''}}}",
		`p.yaml:2:92: tools.t.grant.where: is empty; take it out where the grant covers all calls of the tool`},
	{"a condition that hides something", "tools: {t: {action: require_approval, grant: {calls: 2, within: 1h, critical: true, where: \"args.x == '\\u202e'\"}}}",
		`p.yaml:2:92: tools.t.grant.where: holds a character that is not printed; write it as an escape, for example "\u00a0"`},
	{"a condition that is no text", "tools: {t: {action: require_approval, grant: {calls: 2, within: 1h, critical: true, where: true}}}",
		`p.yaml:2:92: tools.t.grant.where: wanted text, found a truth value; put it in quotes`},
	{"a limit by an argument", "tools: {t: {rate_limit: {max: 1, window: 1s, per: [args.account, principal]}}}",
		`p.yaml:2:52: tools.t.rate_limit.per[0]: a limit kept by an argument is not offered in this version; use session, principal, agent, tenant, server, tool`},

	// What nobody knows.
	{"a misspelt key of an entry", "tools:\n  wasm_agent_export: {rate_limt: {max: 10, window: 60}}",
		`p.yaml:3:23: tools.wasm_agent_export: unknown key "rate_limt"; did you mean "rate_limit"?`},
	{"a misspelt key of the document", "defualt: deny\ntools: {t: {action: allow}}",
		`p.yaml:2:1: unknown key "defualt"; did you mean "default"?`},
	{"an unknown key of a limit", "tools: {t: {rate_limit: {max: 1, window: 1s, bucket: x}}}",
		`p.yaml:2:46: tools.t.rate_limit: unknown key "bucket"; known are: max, window, per`},
	{"an unknown key of a match", "rules: [{name: r, match: {user: ana}, action: deny}]",
		`p.yaml:2:27: rules[0].match: unknown key "user"; known are: tool, server, agent, principal, groups, tenant, category, risk, tags, annotations`},
	{"a match under tools", "tools: {t: {match: {agent: a}, name: x, action: deny}}",
		"p.yaml:2:13: tools.t: an entry under tools has no \"match\"; it is about the tool that it names; use rules for more\n" +
			`p.yaml:2:32: tools.t: an entry under tools has no "name"; it is about the tool that it names; use rules for more`},
	{"a misspelt action", "tools: {t: {action: dney}}",
		`p.yaml:2:21: tools.t.action: unknown action "dney"; did you mean "deny"?`},
	{"no such action", "rules: [{name: r, action: block}]",
		`p.yaml:2:27: rules[0].action: unknown action "block"; known are: allow, deny, hide, require_approval`},
	{"the action that has no name", "tools: {t: {action: none}}",
		`p.yaml:2:21: tools.t.action: unknown action "none"; known are: allow, deny, hide, require_approval`},
	{"a misspelt default", "default: alow",
		`p.yaml:2:10: default: unknown default "alow"; did you mean "allow"?`},
	{"a misspelt dimension", "tools: {t: {rate_limit: {max: 1, window: 1s, per: [sesion]}}}",
		`p.yaml:2:52: tools.t.rate_limit.per[0]: unknown dimension "sesion"; did you mean "session"?`},

	// What is missing or empty.
	{"a document that says nothing", "name: x\nserver: s",
		`p.yaml:1:1: says nothing; give it default, tools or rules`},
	{"empty tools and rules", "tools: {}\nrules: []",
		"p.yaml:2:1: tools: is empty; take it out\n" +
			`p.yaml:3:1: rules: is empty; take it out`},
	{"keys without values", "tools:\nrules:\n",
		"p.yaml:2:1: tools: has no value; give it one, or take the key out\n" +
			`p.yaml:3:1: rules: has no value; give it one, or take the key out`},
	{"a forgotten limit", "tools:\n  t:\n    action: allow\n    rate_limit:\n",
		`p.yaml:5:5: tools.t.rate_limit: has no value; give it one, or take the key out`},
	{"an entry that says nothing", "tools: {t: {}, u: {reason: because}}",
		"p.yaml:2:9: tools.t: says nothing: it has neither an action nor a rate_limit; give it one, or take it out\n" +
			`p.yaml:2:16: tools.u: says nothing: it has neither an action nor a rate_limit; give it one, or take it out`},
	{"a rule that says nothing", "rules:\n  - {name: r, match: {tool: t}}",
		`p.yaml:3:5: rules[0]: says nothing: it has neither an action nor a rate_limit; give it one, or take it out`},
	{"a rule without a name", "rules:\n  - {action: deny}",
		`p.yaml:3:5: rules[0].name: is required; name the rule: decisions and limits refer to it`},
	{"a limit without its numbers", "tools: {t: {rate_limit: {}}, u: {rate_limit: [{max: 1}, {window: 1s}]}}",
		"p.yaml:2:13: tools.t.rate_limit.max: is required; say how many calls fit into the window, for example max: 10\n" +
			"p.yaml:2:13: tools.t.rate_limit.window: is required; say how long the window is, for example window: 60s\n" +
			"p.yaml:2:47: tools.u.rate_limit[0].window: is required; say how long the window is, for example window: 60s\n" +
			`p.yaml:2:57: tools.u.rate_limit[1].max: is required; say how many calls fit into the window, for example max: 10`},
	{"empty lists", "rules: [{name: r, match: {tool: [], groups: []}, action: require_approval, rate_limit: [], approvers: []}]",
		"p.yaml:2:27: rules[0].match.tool: is empty; it would match nothing: take it out, or name something\n" +
			"p.yaml:2:37: rules[0].match.groups: is empty; it would match nothing: take it out, or name something\n" +
			"p.yaml:2:76: rules[0].rate_limit: is empty; take it out\n" +
			`p.yaml:2:92: rules[0].approvers: is empty; take it out: then any approver may decide`},
	{"a limit by nothing", "tools: {t: {rate_limit: {max: 1, window: 1s, per: []}}}",
		`p.yaml:2:46: tools.t.rate_limit.per: is empty; name what the limit is counted by`},
	{"empty text", "name: ''\nserver: ''\nrules: [{name: '', match: {tool: ''}, action: deny}]",
		"p.yaml:2:7: name: is required\n" +
			"p.yaml:3:9: server: is empty; take it out for every server\n" +
			"p.yaml:4:16: rules[0].name: is required; name the rule: decisions and limits refer to it\n" +
			`p.yaml:4:34: rules[0].match.tool: is empty; write * for any`},
	{"a tool without a name", "tools: {'': {action: deny}}",
		`p.yaml:2:9: tools[""]: is no tool's name`},

	// What is out of bounds.
	{"numbers out of bounds", "tools:\n  t: {rate_limit: {max: 0, window: 0}}\n  u: {rate_limit: {max: 1000000001, window: 367d}}\n  v: {rate_limit: {max: -1, window: 1us}}",
		"p.yaml:3:25: tools.t.rate_limit.max: 0 is not between 1 and 1000000000\n" +
			"p.yaml:3:36: tools.t.rate_limit.window: is not between 1ms and 366 days\n" +
			"p.yaml:4:25: tools.u.rate_limit.max: 1000000001 is not between 1 and 1000000000\n" +
			"p.yaml:4:45: tools.u.rate_limit.window: is not between 1ms and 366 days\n" +
			"p.yaml:5:25: tools.v.rate_limit.max: -1 is not between 1 and 1000000000\n" +
			`p.yaml:5:37: tools.v.rate_limit.window: is not between 1ms and 366 days`},
	{"a window beyond all numbers", "tools: {t: {rate_limit: {max: 1, window: 9223372036854775807}}, u: {rate_limit: {max: 1, window: 99999999999d}}}",
		"p.yaml:2:42: tools.t.rate_limit.window: is not between 1ms and 366 days\n" +
			`p.yaml:2:98: tools.u.rate_limit.window: is not between 1ms and 366 days`},
	{"a window that is none", "tools: {t: {rate_limit: {max: 1, window: minute}}, u: {rate_limit: {max: 1, window: 010}}, v: {rate_limit: {max: 1, window: '60'}}, w: {rate_limit: {max: 1, window: [1]}}}",
		"p.yaml:2:42: tools.t.rate_limit.window: wanted a number of seconds or a duration; write it as 60, 90s, 15m, 1h or 7d\n" +
			"p.yaml:2:85: tools.u.rate_limit.window: wanted a number of seconds or a duration; write it as 60, 90s, 15m, 1h or 7d\n" +
			"p.yaml:2:125: tools.v.rate_limit.window: wanted a number of seconds or a duration; write it as 60, 90s, 15m, 1h or 7d\n" +
			`p.yaml:2:158: tools.w.rate_limit.window: wanted a number of seconds or a duration; write it as 60, 90s, 15m, 1h or 7d`},
	{"a budget", "tools: {t: {rate_limit: {max: '500.00', window: 1d}}}",
		`p.yaml:2:31: tools.t.rate_limit.max: wanted a whole number, found text "500.00"`},
	{"a quorum out of bounds", "tools: {t: {action: require_approval, quorum: 0}, u: {action: require_approval, quorum: 17}}",
		"p.yaml:2:47: tools.t.quorum: 0 is not between 1 and 16\n" +
			`p.yaml:2:89: tools.u.quorum: 17 is not between 1 and 16`},
	{"terms of an approval without one", "tools: {t: {action: allow, approvers: [a], quorum: 2}}",
		"p.yaml:2:28: tools.t.approvers: has no use without action: require_approval\n" +
			`p.yaml:2:52: tools.t.quorum: has no use without action: require_approval`},
	{"more terms of an approval without one", "tools:\n  t:\n    action: allow\n    decide_within: 1h\n    execute_within: 1h\n    self_confirm: true\n    grant: {calls: 2, within: 1h, critical: true}",
		"p.yaml:5:20: tools.t.decide_within: has no use without action: require_approval\n" +
			"p.yaml:6:21: tools.t.execute_within: has no use without action: require_approval\n" +
			"p.yaml:7:19: tools.t.self_confirm: has no use without action: require_approval\n" +
			`p.yaml:8:5: tools.t.grant: has no use without action: require_approval`},
	{"idempotent where nothing is sent", "rules:\n  - {name: a, action: deny, idempotent: true}\n  - {name: b, rate_limit: {max: 1, window: 1s}, idempotent: true}",
		"p.yaml:3:41: rules[0].idempotent: has no use without action: allow or require_approval\n" +
			`p.yaml:4:61: rules[1].idempotent: has no use without action: allow or require_approval`},
	{"times out of bounds", "tools:\n  t: {action: require_approval, decide_within: 0, execute_within: 500ms}\n  u: {action: require_approval, decide_within: 31d, execute_within: -1}\n  v: {action: require_approval, decide_within: soon}",
		"p.yaml:3:48: tools.t.decide_within: is not between 1s and 30 days\n" +
			"p.yaml:3:67: tools.t.execute_within: is not between 1s and 30 days\n" +
			"p.yaml:4:48: tools.u.decide_within: is not between 1s and 30 days\n" +
			"p.yaml:4:69: tools.u.execute_within: is not between 1s and 30 days\n" +
			`p.yaml:5:48: tools.v.decide_within: wanted a number of seconds or a duration; write it as 60, 90s, 15m, 1h or 7d`},
	{"a confirmation beside what it can't give", "tools:\n  t: {action: require_approval, self_confirm: true, approvers: [a]}\n  u: {action: require_approval, self_confirm: true, quorum: 2}\n  v: {action: require_approval, self_confirm: true, grant: {calls: 2, within: 1h, critical: true}}",
		"p.yaml:3:47: tools.t.self_confirm: lets the person at the agent confirm, whose groups nobody knows, and approvers names groups; take one of them out\n" +
			"p.yaml:4:47: tools.u.self_confirm: lets one person confirm, and the quorum is 2; take one of them out\n" +
			`p.yaml:5:47: tools.v.self_confirm: confirms one call, and a grant is for more; take one of them out`},
	{"grants out of bounds", "tools:\n  t: {action: require_approval, grant: {critical: true}}\n  u: {action: require_approval, grant: {calls: 0, within: 8d, critical: true}}\n  v: {action: require_approval, grant: {calls: 10001, within: 0, critical: true}}\n  w: {action: require_approval, grant: {calls: 0, within: 0}}",
		"p.yaml:3:33: tools.t.grant.calls: is required; say how many calls one approval covers, for example calls: 10\n" +
			"p.yaml:3:33: tools.t.grant.within: is required; say how long it holds, for example within: 1h\n" +
			"p.yaml:4:48: tools.u.grant.calls: 0 is not between 1 and 10000\n" +
			"p.yaml:4:59: tools.u.grant.within: is not between 1s and 7 days\n" +
			"p.yaml:5:48: tools.v.grant.calls: 10001 is not between 1 and 10000\n" +
			"p.yaml:5:63: tools.v.grant.within: is not between 1s and 7 days\n" +
			"p.yaml:6:48: tools.w.grant.calls: 0 is not between 1 and 10000"},
	{"groups that are none", "tools: {t: {action: require_approval, approvers: [a, '', a]}}",
		"p.yaml:2:54: tools.t.approvers[1]: is no group's name; use 1 to 128 bytes without control characters\n" +
			`p.yaml:2:58: tools.t.approvers[2]: stands there twice; keep one of them`},
	{"a long reason", "tools: {t: {action: deny, reason: " + strings.Repeat("x", 1025) + "}}",
		`p.yaml:2:35: tools.t.reason: is longer than 1024 bytes`},
	{"a reason that hides text", "tools: {t: {action: deny, reason: \"a\\u202eb\"}}",
		`p.yaml:2:35: tools.t.reason: holds a character that is not printed`},
	{"names that are none", "name: a b\nrules: [{name: -r, action: deny}, {name: " + strings.Repeat("r", 129) + ", action: deny}]",
		"p.yaml:2:7: name: is not a name; use 1 to 128 letters, digits and _ . - and start with a letter or a digit\n" +
			"p.yaml:3:16: rules[0].name: is not a name; use 1 to 128 letters, digits and _ . - and start with a letter or a digit\n" +
			`p.yaml:3:42: rules[1].name: is not a name; use 1 to 128 letters, digits and _ . - and start with a letter or a digit`},
	{"a rule with the name of an entry", "tools: {t: {action: allow}}\nrules: [{name: tools.t, action: deny}]",
		"p.yaml:3:16: rules[0].name: another rule has the name \"tools.t\"; give each its own"},
	{"a rule with a name as entries have", "rules: [{name: tools.t, action: deny}]",
		`p.yaml:2:16: rules[0].name: starts with "tools.", which names the entries under tools; choose another name`},
	{"two rules of one name", "rules: [{name: r, action: deny}, {name: r, action: allow}]",
		`p.yaml:2:41: rules[1].name: another rule has the name "r"; give each its own`},
	{"an entry twice", "tools:\n  t: {action: allow}\n  t: {action: deny}",
		`p.yaml:4:3: tools: the key "t" stands here twice; keep one of them`},
	{"two limits in one bucket", "tools: {t: {rate_limit: [{max: 1, window: 60, per: [tool, agent]}, {max: 2, window: 1m, per: [agent, tool]}]}}",
		`p.yaml:2:68: tools.t.rate_limit[1]: another limit of this rule has the same window and the same per; keep the smaller`},
	{"a dimension twice", "tools: {t: {rate_limit: {max: 1, window: 60, per: [tool, tool]}}}",
		`p.yaml:2:58: tools.t.rate_limit.per[1]: tool stands there twice; keep one of them`},

	// Patterns.
	{"a pattern under tools", "tools: {create_*: {action: deny}}",
		`p.yaml:2:9: tools.create_*: a name under tools is no pattern; use rules, with match: {tool: …}`},
	{"no tool's name", "tools: {'créer': {action: deny}, 'a b': {action: deny}}",
		"p.yaml:2:9: tools.créer: is no tool's name; tools have names of 1 to 128 letters, digits and _ . / -\n" +
			`p.yaml:2:34: tools["a b"]: is no tool's name; tools have names of 1 to 128 letters, digits and _ . / -`},
	{"classes and alternatives", "rules: [{name: r, match: {tool: 'create_[ab]', agent: ['{a,b}']}, action: deny}]",
		"p.yaml:2:33: rules[0].match.tool: '[' has no meaning in a pattern; list the names one by one, or write \\[ for the character\n" +
			`p.yaml:2:56: rules[0].match.agent[0]: '{' has no meaning in a pattern; list the names one by one, or write \{ for the character`},
	{"a lone escape", `rules: [{name: r, match: {agent: 'a\'}, action: deny}]`,
		`p.yaml:2:34: rules[0].match.agent: ends in a lone \; write \\ for the character`},
	{"patterns that can never match", "server: GitHub\nrules: [{name: r, match: {tool: ['git:*', 'a b'], tenant: ACME, server: 'a_*'}, action: deny}]",
		"p.yaml:2:9: server: can never match: 'G' is in no server's name; servers have names of lower-case letters, digits and -\n" +
			"p.yaml:3:34: rules[0].match.tool[0]: can never match: ':' is in no tool's name; tools have names of letters, digits and _ . / -\n" +
			"p.yaml:3:43: rules[0].match.tool[1]: can never match: ' ' is in no tool's name; tools have names of letters, digits and _ . / -\n" +
			"p.yaml:3:59: rules[0].match.tenant: can never match: 'A' is in no tenant's name; tenants have names of lower-case letters, digits and -\n" +
			`p.yaml:3:73: rules[0].match.server: can never match: '_' is in no server's name; servers have names of lower-case letters, digits and -`},
	{"a pattern twice", "rules: [{name: r, match: {tool: [a, b, a]}, action: deny}]",
		`p.yaml:2:40: rules[0].match.tool[2]: stands there twice; keep one of them`},
	{"a long pattern", "rules: [{name: r, match: {principal: " + strings.Repeat("x", 513) + "}, action: deny}]",
		`p.yaml:2:38: rules[0].match.principal: is longer than 512 bytes`},

	// Types.
	{"types", "server: [a, b]\ntools: [t]\nrules: {r: {action: deny}}",
		"p.yaml:2:1: server: wanted text, found a list\n" +
			"p.yaml:3:1: tools: wanted a mapping, found a list\n" +
			`p.yaml:4:1: rules: wanted a list, found a mapping; put it in [ ]`},
	{"several problems at once", "tools:\n  t: {action: alow, rate_limt: {max: 1}}\n  u: {rate_limit: {max: ten, window: 60}}\nrules:\n  - {match: {tool: 'x['}, action: deny}",
		"p.yaml:3:15: tools.t.action: unknown action \"alow\"; did you mean \"allow\"?\n" +
			"p.yaml:3:21: tools.t: unknown key \"rate_limt\"; did you mean \"rate_limit\"?\n" +
			"p.yaml:4:25: tools.u.rate_limit.max: wanted a whole number, found text \"ten\"\n" +
			"p.yaml:6:5: rules[0].name: is required; name the rule: decisions and limits refer to it\n" +
			`p.yaml:6:20: rules[0].match.tool: '[' has no meaning in a pattern; list the names one by one, or write \[ for the character`},
}

func TestParseRefuses(t *testing.T) {
	t.Parallel()
	for _, tt := range refusals {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			expect(t, "version: 1\n"+tt.text, tt.want)
		})
	}
}

func TestParseRefusesOtherVersionsAndEmptyFiles(t *testing.T) {
	t.Parallel()
	tests := []struct{ name, text, want string }{
		{"an empty file", "", `p.yaml:1:1: is empty; a policy starts with version: 1`},
		{"nothing but comments", "# soon\n---\n", `p.yaml:1:1: is empty; a policy starts with version: 1`},
		{"no version", "default: deny", `p.yaml:1:1: version: is required; start with version: 1`},
		{"another version", "version: 2\ndefault: deny", `p.yaml:1:10: version: 2 is not supported by this version; write version: 1`},
		{"a version that is text", "version: '1'\ndefault: deny", `p.yaml:1:10: version: wanted a whole number, found text "1"; take the quotes off`},
		{"a list", "- version: 1", "p.yaml:1:1: wanted a mapping, found a list\n" +
			`p.yaml:1:1: version: is required; start with version: 1`},
		{"two documents", "version: 1\n---\nversion: 1", `p.yaml:2:1: a second document starts here; one file holds one`},
		{"an anchor", "version: 1\ndefault: &d deny", `p.yaml:2:10: default: anchors and aliases are not supported; write the value out in each place`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			expect(t, tt.text, tt.want)
		})
	}
}

func TestParseRefusesANameThatTheFileCannotGive(t *testing.T) {
	t.Parallel()
	_, err := parse("my policy.yaml", []byte("version: 1\ndefault: deny"))
	const want = "my policy.yaml:1:1: name: is not a name; the file's name can't be the document's: add name"
	if err == nil || err.Error() != want {
		t.Errorf("Parse = %v, want %s", err, want)
	}
}

func TestParseSetNamesTheProblemsOfEveryFile(t *testing.T) {
	t.Parallel()
	good := "version: 1\ndefault: deny"
	_, err := document.ParseSet([]document.File{
		{Path: "a/x.yaml", Text: []byte(good)},
		{Path: "b/bad.yaml", Text: []byte("version: 1\ndefault: maybe")},
		{Path: "c/x.yaml", Text: []byte(good)},
		{Path: "d/y.yaml", Text: []byte("version: 1\nname: x\ndefault: deny")},
	}, nil)
	const want = `b/bad.yaml:2:10: default: unknown default "maybe"; known are: deny, allow, by_risk
c/x.yaml:1:1: name: another document has the name "x": a/x.yaml; give each a name of its own
d/y.yaml:2:7: name: another document has the name "x": a/x.yaml; give each a name of its own`
	if err == nil {
		t.Fatal("ParseSet succeeded")
	}
	if diff := cmp.Diff(want, err.Error()); diff != "" {
		t.Errorf("ParseSet (-want +got):\n%s", diff)
	}
	set, err := document.ParseSet(nil, nil)
	if err != nil || len(set.Documents) != 0 {
		t.Errorf("ParseSet of nothing = %v, %v", set, err)
	}
}

func TestParseBoundsWhatItSays(t *testing.T) {
	t.Parallel()
	var text strings.Builder
	text.WriteString("version: 1\nrules:\n")
	for range 50_000 {
		text.WriteString("  - {action: deny}\n")
	}
	_, err := parse("p.yaml", []byte(text.String()))
	if err == nil || strings.Count(err.Error(), "\n") != 99 {
		t.Errorf("50,000 problems are told in %d lines, want 100", strings.Count(fmt.Sprint(err), "\n")+1)
	}
	text.Reset()
	text.WriteString("version: 1\ntools: {t: {rate_limit: [{max: 1, window: 1}")
	for i := range 50_000 {
		fmt.Fprintf(&text, ", {max: 1, window: %d}", i+2)
	}
	text.WriteString("]}}")
	expect(t, text.String(), "p.yaml:2:13: tools.t.rate_limit: has more than 16 limits")
}

func expect(t *testing.T, text, want string) {
	t.Helper()
	d, err := parse("p.yaml", []byte(text))
	if err == nil {
		t.Fatalf("Parse succeeded with %+v, want\n%s", d, want)
	}
	if diff := cmp.Diff(strings.Split(want, "\n"), strings.Split(err.Error(), "\n")); diff != "" {
		t.Errorf("Parse of\n%s\n(-want +got):\n%s", text, diff)
	}
}

// FuzzParse holds that what Parse accepts compiles, whatever the bytes, and what
// it refuses it explains.
func FuzzParse(f *testing.F) {
	f.Add([]byte("version: 1\nserver: s*\ndefault: allow\ntools: {t: {action: deny, reason: r, rate_limit: {max: 1, window: 60}}}"))
	f.Add([]byte(`{"version":1,"rules":[{"name":"r","match":{"tool":["a*"],"groups":"x"},"action":"require_approval","approvers":["g"],"quorum":2}]}`))
	for _, tt := range refusals {
		f.Add([]byte("version: 1\n" + tt.text))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		d, err := parse("p.yaml", text)
		if err != nil {
			if !strings.HasPrefix(err.Error(), "p.yaml:") {
				t.Errorf("%q names no place", err)
			}
			return
		}
		set, err := engine.Compile([]engine.Document{d}, engine.Options{SessionCap: 10, Times: engine.Times{Decide: 15 * time.Minute, Execute: 5 * time.Minute}})
		if err != nil {
			t.Fatalf("accepted, but does not compile: %v", err)
		}
		subject := engine.Subject{Caller: engine.Principal{Tenant: "default", Name: "x"}}
		for _, r := range d.Rules {
			if r.Tool != "" && r.Action == engine.ActionDeny && d.Server == "" {
				if got := set.Decide(engine.Call{Server: "s", Tool: r.Tool, Subject: subject, Facts: engine.Facts{Standing: engine.Callable}}); got.Effect != engine.Deny {
					t.Errorf("an entry denies %q, and it is let through: %+v", r.Tool, got)
				}
			}
		}
	})
}

func BenchmarkParse(b *testing.B) {
	var text strings.Builder
	text.WriteString("version: 1\ntools:\n")
	for i := range 10_000 {
		fmt.Fprintf(&text, "  tool_%d: {action: allow, rate_limit: {max: 10, window: 60}}\n", i)
	}
	for b.Loop() {
		if _, err := parse("p.yaml", []byte(text.String())); err != nil {
			b.Fatal(err)
		}
	}
}
