package manifest_test

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	wasmagentv1 "github.com/sluice-mesh/sluice/gen/sluice/wasmagent/v1"
	"github.com/sluice-mesh/sluice/services/wasmagent/internal/manifest"
)

func TestMatchTool_RefusesWithoutRights(t *testing.T) {
	t.Parallel()
	for name, r := range map[string]*manifest.Rights{"no manifest": manifest.New(nil), "an empty one": manifest.New(&wasmagentv1.Manifest{})} {
		if _, err := r.MatchTool("s", "t", []byte("{}"), time.Time{}); !errors.Is(err, manifest.ErrNotAllowed) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestMatchTool_AppliesGlobsAndConditions(t *testing.T) {
	t.Parallel()
	path := func(c *wasmagentv1.ArgumentCondition) *wasmagentv1.ToolRight {
		c.Path = "/path"
		return &wasmagentv1.ToolRight{Server: "s", Tool: "t", Conditions: []*wasmagentv1.ArgumentCondition{c}}
	}
	named := func(glob string) *wasmagentv1.ToolRight { return &wasmagentv1.ToolRight{Server: "s", Tool: glob} }
	equals := path(&wasmagentv1.ArgumentCondition{Test: &wasmagentv1.ArgumentCondition_Equals{Equals: "/srv"}})
	prefix := path(&wasmagentv1.ArgumentCondition{Test: &wasmagentv1.ArgumentCondition_Prefix{Prefix: "ab"}})
	below := path(&wasmagentv1.ArgumentCondition{Test: &wasmagentv1.ArgumentCondition_Below{Below: "/srv"}})
	most := path(&wasmagentv1.ArgumentCondition{Test: &wasmagentv1.ArgumentCondition_AtMost{AtMost: "100.5"}})
	deep := &wasmagentv1.ToolRight{Server: "s", Tool: "t", Conditions: []*wasmagentv1.ArgumentCondition{
		{Path: "/a~1b/1/c", Test: &wasmagentv1.ArgumentCondition_Equals{Equals: "x"}},
	}}
	for _, c := range []struct {
		right           *wasmagentv1.ToolRight
		tool, arguments string
		allowed         bool
	}{
		{named("t"), "t", `{}`, true},
		{named("t"), "tt", `{}`, false},
		{named("read_*"), "read_file", `{}`, true},
		{named("read_*"), "unread_file", `{}`, false},
		{named("*_file"), "read_file", `{}`, true},
		{named("*_file"), "read_files", `{}`, false},
		{named("a*b*c"), "aXbYc", `{}`, true},
		{named("a*b*c"), "acb", `{}`, false},
		{named("a*a"), "a", `{}`, false},
		{equals, "t", `{"path":"/srv"}`, true},
		{equals, "t", `{"path":"/srv/"}`, false},
		{equals, "t", `{}`, false},
		{equals, "t", `{"path":["/srv"]}`, false},
		{equals, "t", `{"Path":"/srv"}`, false},
		{prefix, "t", `{"path":"abc"}`, true},
		{prefix, "t", `{"path":"a"}`, false},
		{below, "t", `{"path":"/srv"}`, true},
		{below, "t", `{"path":"/srv/a"}`, true},
		{below, "t", `{"path":"/srvx"}`, false},
		{below, "t", `{"path":"/srv/../etc"}`, false},
		{below, "t", `{"path":"/srv//a"}`, false},
		{below, "t", `{"path":"/srv/./a"}`, false},
		{below, "t", `{"path":"/srv/a\\..\\b"}`, false},
		{most, "t", `{"path":100.5}`, true},
		{most, "t", `{"path":1005e-1}`, true},
		{most, "t", `{"path":100.50000000000000000000001}`, false},
		{most, "t", `{"path":"1"}`, false},
		{most, "t", `{"path":1e400}`, false},
		{most, "t", `{"path":-1e-9999999999}`, false},
		{most, "t", `{"path":0.` + strings.Repeat("0", 70) + `1}`, false},
		{most, "t", `{"path":1,"Path":1000000}`, false},
		{most, "t", `{"path":1,"path":1000000}`, false},
		{below, "t", `{"path":"/srv/a","x":"` + strings.Repeat("x", 64<<10) + `"}`, false},
		{named("a*"), "a" + strings.Repeat("b", 128), `{}`, false},
		{deep, "t", `{"a/b":[0,{"c":"x"}]}`, true},
		{deep, "t", `{"a/b":[{"c":"x"},0]}`, false},
		{deep, "t", `{"a/b":{"1":{"c":"x"}}}`, true},
	} {
		_, err := manifest.New(&wasmagentv1.Manifest{Tools: []*wasmagentv1.ToolRight{c.right}}).MatchTool("s", c.tool, []byte(c.arguments), time.Time{})
		if (err == nil) != c.allowed || err != nil && !errors.Is(err, manifest.ErrNotAllowed) {
			t.Errorf("%v allows %s %s: %v, want %v", c.right, c.tool, c.arguments, err, c.allowed)
		}
		if _, err := manifest.New(&wasmagentv1.Manifest{Tools: []*wasmagentv1.ToolRight{c.right}}).MatchTool("other", c.tool, []byte(c.arguments), time.Time{}); err == nil {
			t.Errorf("%v allows %s of another server", c.right, c.tool)
		}
	}
}

// A grant is valid until it expires. The rights of the manifest are used before the rights of the grants.
func TestMatchTool_GrantExpires(t *testing.T) {
	t.Parallel()
	begin := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	r := manifest.New(
		&wasmagentv1.Manifest{Tools: []*wasmagentv1.ToolRight{{Server: "s", Tool: "t", Calls: new(int32(2))}}},
		&wasmagentv1.RightsGrant{Id: "g", Rights: &wasmagentv1.Manifest{Tools: []*wasmagentv1.ToolRight{{Server: "s", Tool: "t*"}}}, ExpiresAt: timestamppb.New(begin.Add(time.Minute))},
	)
	for _, c := range []struct {
		after time.Duration
		tool  string
		want  []manifest.Match
	}{
		{0, "t", []manifest.Match{{MaxUses: 2}, {Grant: "g"}}},
		{0, "tt", []manifest.Match{{Grant: "g"}}},
		{time.Minute, "t", []manifest.Match{{MaxUses: 2}}},
		{time.Minute, "tt", nil},
	} {
		got, err := r.MatchTool("s", c.tool, []byte("{}"), begin.Add(c.after))
		if !slices.Equal(got, c.want) || (err == nil) != (c.want != nil) {
			t.Errorf("%s after %s: %v %v, want %v", c.tool, c.after, got, err, c.want)
		}
	}
}
