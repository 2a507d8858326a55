package condition_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/sluice-mesh/sluice/services/policy/internal/condition"
)

func TestExplain_NamesValuesAndDecidingComparisons(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		text, args string
		result     condition.Result
		err        string
		values     []string
		deciding   []string
	}{
		{
			text: `decimal(args.amount) <= decimal("100") && args.to.endsWith(".example")`, args: `{"amount":150.5,"to":"a.example"}`,
			result: condition.False, values: []string{`args.amount is 150.5`, `args.to is the string "a.example"`},
			deciding: []string{`decimal(args.amount) <= decimal("100") were true`},
		},
		{
			text: `args.a == 1 && args.b == 2`, args: `{"a":3,"b":3}`,
			result: condition.False, values: []string{"args.a is 3", "args.b is 3"},
		},
		{
			text: `args.a == 1 || !(args.b == 2)`, args: `{"a":1,"b":2}`,
			result: condition.True, values: []string{"args.a is 1", "args.b is 2"}, deciding: []string{"args.a == 1 were false"},
		},
		{
			text: `args.f ? args.a == 1 : args.a == 2`, args: `{"f":true,"a":1}`,
			result: condition.True, values: []string{"args.f is true", "args.a is 1"}, deciding: []string{"args.f were false", "args.a == 1 were false"},
		},
		{text: `args.draft != true`, args: `{}`, result: condition.Failed, err: "args.draft is missing"},
		{text: `args.a.b["c"] == 1`, args: `{"a":{"b":{}}}`, result: condition.Failed, err: `args.a.b["c"] is missing`},
		{
			text: `args.n < 100`, args: `{"n":"99"}`, result: condition.Failed, values: []string{`args.n is the string "99"`},
			err: `args.n < 100 does not accept args.n, which is the string "99"`,
		},
		{
			text: `path.within(args.path, "/srv")`, args: `{"path":"../x"}`, result: condition.Failed, values: []string{`args.path is the string "../x"`},
			err: `path.within(args.path, "/srv"): `,
		},
		{
			text: `args.to.all(x, x.endsWith(".example"))`, args: `{"to":["a.example", 7]}`, result: condition.Failed,
			values: []string{"args.to is a list of 2 elements"}, err: `x.endsWith(".example") does not accept x, which is 7`,
		},
		{text: `args.amount == 1`, args: `{"amount":1,"Amount":2}`, result: condition.Failed, err: `the key "Amount" may be read as "amount"`},
	} {
		got := compile(t, tt.text).Explain(&condition.Input{Args: arguments(t, tt.args)})
		text := ""
		if got.Err != nil {
			text = got.Err.Error()
		}
		if got.Result != tt.result || !strings.HasPrefix(text, tt.err) || tt.err == "" && text != "" ||
			!slices.Equal(got.Values, tt.values) || !slices.Equal(got.Deciding, tt.deciding) {
			t.Errorf("%s for %s:\n%+v", tt.text, tt.args, got)
		}
	}
}
