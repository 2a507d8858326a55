package condition_test

import (
	"strings"
	"testing"

	"github.com/sluice-mesh/sluice/services/policy/internal/condition"
)

// TestEvaluate_FailsForOtherSpellingsOfKeys checks that a condition is false if the arguments contain another spelling of
// a key that the condition reads. Otherwise a server that interprets Amount as amount would use a value that the
// condition did not test. Case P14.
func TestEvaluate_FailsForOtherSpellingsOfKeys(t *testing.T) {
	t.Parallel()
	const taken = " may be read as "
	for _, tt := range []struct{ text, args, want string }{
		{`args.amount <= 100`, `{"amount":1}`, "true"},
		{`args.amount <= 100`, `{"amount":1,"note":"x","Note":"y"}`, "true"},
		{`args.amount <= 100`, `{"amount":1,"Amount":1000000}`, `the key "Amount" may be read as "amount"`},
		{`args.amount <= 100`, `{"Amount":1}`, taken},
		{`args["amount"] <= 100`, `{"amount":1,"AMOUNT":2}`, taken},
		{`args.?amount.orValue(0) <= 100`, `{"aMount":200}`, taken},
		{`!has(args.force)`, `{"Force":true}`, taken},
		{`!("force" in args)`, `{"FORCE":true}`, taken},
		{`!args.exists(k, k == "force")`, `{"Force":true}`, taken},
		{`args.all(k, !(k in ["force", "yes"]))`, `{"Yes":true}`, taken},
		{`args.skip == 1`, `{"skip":1,"\u017fkip":2}`, taken}, // ſ, which folds to s
		{`args.key == 1`, `{"key":1,"\u212aey":2}`, taken},    // the sign of kelvin
		{`args.dry_run == true`, `{"dry_run":true,"dryRun":false}`, taken},
		{`args.dryRun == true`, `{"dryRun":true,"dry-run":false}`, taken},
		{`args.a == 1 && args.A == 2`, `{"a":1,"A":2}`, "true"}, // the condition reads both keys

		// Keys are checked at every depth at which the condition reads keys.
		{`args.o.amount <= 100`, `{"o":{"amount":1,"Amount":2}}`, taken},
		{`args.o.amount <= 100`, `{"o":{"amount":1},"O":{}}`, taken},
		{`args.o.amount <= 100`, `{"o":{"amount":1},"Amount":2,"x":{"Amount":2}}`, "true"},
		{`args.lines.all(l, l.qty <= 1)`, `{"lines":[{"qty":1},{"qty":1,"Qty":9}]}`, taken},
		{`args.lines[0].qty <= 1`, `{"lines":[{"qty":1},{"qty":1,"QTY":9}]}`, taken},
		{`args.lines.all(l, l.tags.exists(t, t.name == "x"))`, `{"lines":[{"tags":[{"name":"x","Name":"y"}]}]}`, taken},
		{`[args.o, args.p].all(x, x.n == 1)`, `{"o":{"n":1},"p":{"n":1,"N":2}}`, taken},
		{`(args.b ? args.o : args.p).n == 1`, `{"b":true,"o":{"n":1},"p":{"n":1,"N":2}}`, taken},
		{`args.o[args.k].n == 1`, `{"k":"a","o":{"a":{"n":1,"N":2}}}`, taken},
		{`args.all(k, k == "n" || args[k].n == 1)`, `{"x":{"n":1,"N":2}}`, taken},
		{`path.within(args.path, "/srv")`, `{"path":"/srv/a","Path":"/etc"}`, taken},
		{`size(args) == 2`, `{"a":1,"A":2}`, "true"},
		{`args == {"a": 1}`, `{"a":1,"A":2}`, "false"},
		{`args.list.all(x, x == 1)`, `{"list":[` + strings.Repeat("1,", 30_000) + `1]}`, "would take too long"},
		{`args.list.all(x, x.a == 1)`, `{"list":[` + strings.Repeat("1,", 30_000) + `1]}`, "too many keys"},
	} {
		c := compile(t, tt.text)
		held, err := holds(c, arguments(t, tt.args))
		if got := answer(held, err); !strings.Contains(got, tt.want) || held && err != nil {
			t.Errorf("%s for %.80s: %s; want %s", tt.text, tt.args, got, tt.want)
		}
		if _, err := holds(c.WithExtra(), arguments(t, tt.args)); err != nil && strings.Contains(err.Error(), taken) {
			t.Errorf("%s for %.80s, where extra keys pass: %v", tt.text, tt.args, err)
		}
	}
	if held, err := holds(new(condition.Condition).WithExtra(), arguments(t, `{}`)); held || err == nil {
		t.Errorf("no condition: %v, %v", held, err)
	}
}
