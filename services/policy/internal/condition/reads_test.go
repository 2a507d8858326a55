package condition_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-mesh/sluice/services/policy/internal/condition"
)

func TestReads_NamesTheArgumentsAndTheirTypes(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		`args.n == 1 && args.draft != true`:                   "draft boolean; n integer number",
		`args["a b"] == "x"`:                                  "a b string",
		`args.?force.orValue(false) == true`:                  "force? boolean boolean",
		`has(args.n) && args.n < 3`:                           "n? integer number",
		`"n" in args && args.n in [1, "x"]`:                   "n? integer number string",
		`decimal(args.amount) > 100`:                          "amount number integer string",
		`path.within(args.path, "/srv")`:                      "path string",
		`ip.in(args.ip, "10.0.0.0/8")`:                        "ip string",
		`args.name.contains("x") || !args.ok`:                 "name string; ok boolean",
		`args.to[0] == "x" && size(args.to) > 0`:              "to",
		`args.to.all(x, email.domain(x) == "example.com")`:    "to",
		`args.all(k, k in ["path"]) && call.tool == "x"`:      "",
		`args.o.inner == 1`:                                   "o",
		`caller.subject == "ana"`:                             "",
		`args.a == args.b`:                                    "a; b",
		`args.kind == null`:                                   "kind null",
		`(args.force ? args.n : 2) == 2`:                      "force; n",
		`args.?region.orValue("eu").startsWith("e") == false`: "region? string string",
	} {
		c, err := condition.Compile(text)
		if err != nil {
			t.Errorf("%s: %v", text, err)
			continue
		}
		var got []string
		for _, r := range c.Reads() {
			one := r.Name
			if r.Guarded {
				one += "?"
			}
			for _, u := range r.Uses {
				one += " " + strings.Join(u.Types, " ")
			}
			got = append(got, one)
		}
		if diff := cmp.Diff(want, strings.Join(got, "; ")); diff != "" {
			t.Errorf("%s (-want +got):\n%s", text, diff)
		}
	}
	if got := new(condition.Condition).Reads(); got != nil {
		t.Errorf("the zero condition reads %s", fmt.Sprint(got))
	}
}
