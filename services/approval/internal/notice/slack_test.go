package notice_test

import (
	"encoding/hex"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-mesh/sluice/services/approval/internal/lifecycle"
	"github.com/sluice-mesh/sluice/services/approval/internal/notice"
	"github.com/sluice-mesh/sluice/services/approval/internal/notice/fakeslack"
	"github.com/sluice-mesh/sluice/services/approval/internal/store"
	"github.com/sluice-mesh/sluice/services/internal/eventually"
)

func slackConfig(s *fakeslack.Server) notice.Config {
	return notice.Config{Slack: &notice.Slack{
		Target: notice.Target{Name: "slack", Tenant: "acme"}, AppToken: fakeslack.AppToken, BotToken: fakeslack.BotToken, Channel: fakeslack.Channel,
		People: map[string]string{"U1": "ana"}, API: s.API(),
	}}
}

func TestSlack_UpdatesTheMessageWithTheApproval(t *testing.T) {
	t.Parallel()
	fake := fakeslack.Start(t)
	fake.Fail(1)
	s := start(t, slackConfig(fake))
	s.ask(t, "a")
	eventually.Holds(t, "it is posted, at the second attempt", func() bool { return s.count(t, "slack", store.Sent) == 1 })
	m := fake.Messages()[0]
	if len(m.Blocks) != 3 || !strings.Contains(m.Blocks[0].Text.Text, "asked by       bot, agent dev") || !strings.Contains(m.Blocks[1].Text.Text, hidden) ||
		!m.Blocks[0].Expand || !m.Blocks[1].Expand {
		t.Errorf("it shows %+v", m.Blocks)
	}
	if m.Button("approve") == "" || m.Button("approve") != m.Button("deny") || strings.Contains(m.Text, hidden) {
		t.Errorf("the buttons are %q and %q, and the text is %q", m.Button("approve"), m.Button("deny"), m.Text)
	}
	s.askAgain(t, "a")
	eventually.Holds(t, "people are asked again", func() bool { return s.count(t, "slack", store.Sent) == 2 })
	all := fake.Messages()
	if len(all) != 2 || !strings.Contains(all[0].Text, "people are asked again") || all[0].Button("approve") != "" || all[1].Button("approve") == "" {
		t.Errorf("they see %+v", all)
	}
	s.decide(t, "a", no)
	eventually.Holds(t, "the end is sent", func() bool { return s.count(t, "slack", store.Sent) == 3 })
	all = fake.Messages()
	if len(all) != 2 {
		t.Errorf("%d messages", len(all))
	}
	for _, m := range all {
		if m.Text != "pay refund, requested by bot: denied by ana" || len(m.Blocks) != 1 || m.Blocks[0].Text.Type != "plain_text" || strings.Contains(m.Blocks[0].Text.Text, hidden) {
			t.Errorf("they see %+v", m)
		}
	}
}

// A message has no buttons if it does not show the whole view of the call, or if no Slack user is mapped to a subject.
func TestSlack_HasNoButtonsWithoutTheWholeView(t *testing.T) {
	params := func(text string) func(*notice.Slack, *lifecycle.OpenRequest) {
		return func(_ *notice.Slack, q *lifecycle.OpenRequest) {
			q.Call.Call.ParamsJson = `{"arguments":{"card":"` + hidden + `","text":"` + text + `"}}`
		}
	}
	for name, change := range map[string]func(*notice.Slack, *lifecycle.OpenRequest){
		"many arguments":                   params(strings.Repeat("x", 3000)),
		"more than one part of the view":   params(strings.Repeat("x", 2<<20)),
		"many characters that are escaped": params(strings.Repeat("<", 900)),
		"a long reason":                    func(_ *notice.Slack, q *lifecycle.OpenRequest) { q.Decision.Message = strings.Repeat("y", 3000) },
		"no people":                        func(s *notice.Slack, _ *lifecycle.OpenRequest) { s.People = nil },
		"no people, a resource":            func(s *notice.Slack, q *lifecycle.OpenRequest) { s.People = nil; readsHidden(q) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			fake := fakeslack.Start(t)
			cfg := slackConfig(fake)
			q := openRequest("a")
			change(cfg.Slack, &q)
			s := start(t, cfg)
			s.ask(t, "a", func(old *lifecycle.OpenRequest) { *old = q })
			eventually.Holds(t, "it is posted", func() bool { return s.count(t, "slack", store.Sent) == 1 })
			m := fake.Messages()[0]
			var all strings.Builder
			for _, b := range m.Blocks {
				all.WriteString(b.Text.Text)
				if len(b.Text.Text) > 3000 {
					t.Errorf("a text of %d bytes", len(b.Text.Text))
				}
			}
			if m.Button("approve")+m.Button("deny") != "" || !strings.Contains(all.String(), "sluice approvals approve a") || strings.Contains(all.String()+m.Text, hidden) {
				t.Errorf("it shows %+v", m)
			}
		})
	}
}

// An argument contains backticks, a mention and a link. The message shows them without effect, inside the preformatted
// block.
func TestSlack_EscapesMarkup(t *testing.T) {
	t.Parallel()
	fake := fakeslack.Start(t)
	s := start(t, slackConfig(fake))
	s.ask(t, "a", func(q *lifecycle.OpenRequest) {
		q.Call.Call.ParamsJson = `{"arguments":{"text":"` + "```" + `<!channel> <https://example.com|ok> & *bold*"}}`
		q.Call.Call.Name = "<@U1>`"
	})
	eventually.Holds(t, "it is posted", func() bool { return s.count(t, "slack", store.Sent) == 1 })
	m := fake.Messages()[0]
	for _, b := range m.Blocks[:2] {
		inside, fenced := strings.CutPrefix(b.Text.Text, "```\n")
		inside, closed := strings.CutSuffix(inside, "\n```")
		if !fenced || !closed || strings.ContainsAny(inside, "`<>") {
			t.Errorf("it shows %s", b.Text.Text)
		}
	}
	if want := `\u0060\u0060\u0060&lt;!channel&gt;`; !strings.Contains(m.Blocks[1].Text.Text, want) || strings.Contains(m.Text, "<@U1>") {
		t.Errorf("it shows %s; its text is %s", m.Blocks[1].Text.Text, m.Text)
	}
}

func TestSlack_CastsVotesOfMappedUsers(t *testing.T) {
	t.Parallel()
	fake := fakeslack.Start(t)
	s := start(t, slackConfig(fake))
	s.ask(t, "a")
	eventually.Holds(t, "it is posted and the socket is open", func() bool { return s.count(t, "slack", store.Sent) == 1 && fake.Connected() })
	m := fake.Messages()[0]
	value := m.Button("approve")

	fake.Press("U2", fakeslack.Channel, "approve", value) // a user without a subject
	fake.Press("U1", "C999", "approve", value)            // another channel
	fake.Press("U1", fakeslack.Channel, "other", value)   // an unknown button
	fake.Press("U1", fakeslack.Channel, "approve", "a")   // without a digest
	fake.Press("U1", fakeslack.Channel, "deny", value)
	eventually.Holds(t, "all are acknowledged and two are answered", func() bool { return fake.Acks() == 5 && len(fake.Ephemerals()) == 2 })
	want := []fakeslack.Ephemeral{{User: "U2", Text: "Nothing was decided: your Slack user is mapped to no subject of Sluice."}, {User: "U1", Text: "heard &lt;ana&gt;"}}
	got := fake.Ephemerals()
	slices.SortFunc(got, func(a, b fakeslack.Ephemeral) int { return strings.Compare(b.User, a.User) })
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("answers (-want +got):\n%s", diff)
	}
	fake.Disconnect()
	eventually.Holds(t, "it connects again", fake.Connected)
	fake.Press("U1", fakeslack.Channel, "approve", value)
	eventually.Holds(t, "a press is received again", func() bool { return len(s.votes()) == 2 })
	_, shown, _ := strings.Cut(value, " ")
	digest, err := hex.DecodeString(shown)
	if err != nil || len(digest) != 32 {
		t.Fatalf("the button carries %q", value)
	}
	if diff := cmp.Diff([]notice.Press{
		{Tenant: "acme", Subject: "ana", Approval: "a", Verdict: no, ViewDigest: digest},
		{Tenant: "acme", Subject: "ana", Approval: "a", Verdict: yes, ViewDigest: digest},
	}, s.votes()); diff != "" {
		t.Errorf("votes (-want +got):\n%s", diff)
	}
	if strings.Contains(s.log.String(), "geheim") {
		t.Errorf("the log says %s", s.log)
	}
}

func TestSlack_ValidateChecksEachField(t *testing.T) {
	t.Parallel()
	fake := fakeslack.Start(t)
	for name, tt := range map[string]struct {
		change func(*notice.Slack)
		ok     bool
	}{
		"good":               {func(*notice.Slack) {}, true},
		"no tenant":          {func(s *notice.Slack) { s.Tenant = "" }, false},
		"an escalation":      {func(s *notice.Slack) { s.After = 0.5 }, false},
		"the tokens swapped": {func(s *notice.Slack) { s.AppToken, s.BotToken = s.BotToken, s.AppToken }, false},
		"a channel's name":   {func(s *notice.Slack) { s.Channel = "#ops" }, false},
		"no subject":         {func(s *notice.Slack) { s.People = map[string]string{"U1": ""} }, false},
	} {
		s := slackConfig(fake).Slack
		tt.change(s)
		cfg := notice.Config{Slack: s}
		if err := cfg.Validate(); (err == nil) != tt.ok || err != nil && strings.Contains(err.Error(), "geheim") {
			t.Errorf("%s: %v", name, err)
		}
	}
}
