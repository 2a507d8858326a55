package notice

import (
	"cmp"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"regexp"
	"strings"

	"github.com/slack-go/slack"

	approvalv1 "github.com/sluice-mesh/sluice/gen/sluice/approval/v1"
	"github.com/sluice-mesh/sluice/services/approval/internal/store"
	"github.com/sluice-mesh/sluice/services/internal/config"
	"github.com/sluice-mesh/sluice/services/internal/viewtext"
)

// Slack is a channel in Slack, in which people decide by buttons where a message
// shows all that there is to see. Sluice connects to Slack (Socket Mode); nothing
// has to be reachable from outside.
type Slack struct {
	// Target has a tenant, in which people vote, and is no escalation.
	Target
	// AppToken (`xapp-…`, connections:write) and BotToken (`xoxb-…`, chat:write) are
	// those of the app.
	AppToken, BotToken config.Secret
	// Channel is the channel's id, such as C0123456789; the app is a member of it.
	Channel string
	// People are subjects by the ids of their users in Slack. Nobody else's press
	// counts; where there are none, messages have no buttons.
	People map[string]string
	// API is the address of Slack's Web API, for tests; empty means Slack's.
	API string
}

var channelIDs = regexp.MustCompile(`^[CG][A-Z0-9]{1,31}$`)

func (s *Slack) target() Target { return s.Target }

func (s *Slack) validate() error {
	errs := []error{s.Target.validate()}
	if s.Tenant == "" || s.After != 0 {
		errs = append(errs, fmt.Errorf("notices: %s: Slack has a tenant, in which people vote, and is told at once", s.Name))
	}
	if !strings.HasPrefix(string(s.AppToken), "xapp-") || !strings.HasPrefix(string(s.BotToken), "xoxb-") {
		errs = append(errs, fmt.Errorf("notices: %s: Slack wants an app's token, `xapp-…`, and its bot's, `xoxb-…`", s.Name))
	}
	if !channelIDs.MatchString(s.Channel) {
		errs = append(errs, fmt.Errorf("notices: %s: %q is no channel's id, such as C0123456789", s.Name, s.Channel))
	}
	for user, subject := range s.People {
		if user == "" || subject == "" {
			errs = append(errs, fmt.Errorf("notices: %s: people are subjects by ids of users, and neither is empty", s.Name))
		}
	}
	return errors.Join(errs...)
}

func (s *Slack) open(deps Deps) (Channel, error) {
	return &channel{Slack: s, deps: deps, api: slack.New(string(s.BotToken), slack.OptionAppLevelToken(string(s.AppToken)),
		slack.OptionAPIURL(cmp.Or(s.API, slack.APIURL)), slack.OptionHTTPClient(&http.Client{Timeout: sendTime}))}, nil
}

// channel is an open channel in Slack.
type channel struct {
	*Slack
	deps Deps
	api  *slack.Client
}

// maxText is how long the text of a section may be in Slack.
const maxText = 3000

// Send implements Channel. Its receipt is the message's timestamp, by which the
// message is changed when people begin again and when the approval ends.
func (c *channel) Send(ctx context.Context, m *Message) (string, error) {
	line := what(m.Approval) + ": " + standing(m)
	for _, ts := range m.Receipts {
		_, _, _, err := c.api.UpdateMessageContext(ctx, c.Channel, ts, slack.MsgOptionText(line, true), slack.MsgOptionBlocks(text(line)))
		if err != nil && err.Error() != "message_not_found" { // somebody has removed it
			return "", fmt.Errorf("change a message: %w", bare(err))
		}
	}
	if m.View == nil {
		if len(m.Receipts) == 0 {
			return "", ErrMoot
		}
		return "", nil
	}
	_, ts, err := c.api.PostMessageContext(ctx, c.Channel, slack.MsgOptionText(what(m.Approval)+": a person decides", true), slack.MsgOptionBlocks(c.ask(m.View)...))
	if err != nil {
		return "", fmt.Errorf("post a message: %w", bare(err))
	}
	return ts, nil
}

// what is an approval in one line.
func what(a *approvalv1.Approval) string {
	return viewtext.Escape(fmt.Sprintf("%s, asked for by %s", viewtext.Call(a.GetServer(), a.GetMethod(), a.GetName()), a.GetRequester().GetSubject()))
}

// standing is what an earlier message says instead of what it asked.
func standing(m *Message) string {
	if m.Kind == store.Pending {
		return "people begin anew; see the newer message"
	}
	reason := viewtext.Escape(m.Approval.GetReason())
	if reason == "" || strings.HasPrefix(reason, m.Kind) {
		return cmp.Or(reason, m.Kind)
	}
	return m.Kind + ", " + reason
}

// ask are the blocks of a message that asks people. It has buttons where it shows
// the view whole and somebody may press them.
func (c *channel) ask(v *approvalv1.View) []slack.Block {
	seen, params := fenced(viewtext.Facts(v)), fenced(v.GetParams())
	if len(c.People) == 0 || len(v.GetDigest()) == 0 || len(seen) > maxText || len(params) > maxText {
		seen := fenced(facts(v))
		if len(seen) > maxText {
			seen = fenced("There is more to see than fits here.\n")
		}
		return []slack.Block{section(seen), section(fenced(commands(v)))}
	}
	value := v.GetApprovalId() + " " + hex.EncodeToString(v.GetDigest())
	return []slack.Block{
		section(seen), section(params),
		slack.NewActionBlock("decide",
			slack.NewButtonBlockElement(approveButton, value, plain("Approve")).WithStyle(slack.StylePrimary),
			slack.NewButtonBlockElement(denyButton, value, plain("Deny")).WithStyle(slack.StyleDanger)),
	}
}

// fenced is a text that Slack shows as it is: preformatted, with nothing in it that
// is markup, and no backtick that would end it.
func fenced(text string) string {
	return "```\n" + strings.NewReplacer("&", "&amp;", "<", "&lt;", ">", "&gt;", "`", `\u0060`).Replace(strings.TrimSuffix(text, "\n")) + "\n```"
}

// section is a section that Slack does not fold: who decides has it in sight.
func section(text string) slack.Block {
	return slack.NewSectionBlock(slack.NewTextBlockObject(slack.MarkdownType, text, false, true), nil, nil, slack.SectionBlockOptionExpand(true))
}

// text is a section of plain text.
func text(line string) slack.Block {
	if len(line) > maxText {
		line = strings.ToValidUTF8(line[:maxText], "")
	}
	return slack.NewSectionBlock(plain(line), nil, nil)
}

func plain(text string) *slack.TextBlockObject {
	return slack.NewTextBlockObject(slack.PlainTextType, text, false, false)
}
