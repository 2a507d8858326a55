package approval

import (
	"errors"
	"fmt"

	"github.com/sluice-mesh/sluice/services/approval/internal/notice"
	"github.com/sluice-mesh/sluice/services/internal/config"
)

// noticeConfig returns the configured channels, with resolved secrets.
func noticeConfig(f *config.File, env config.Env) (notice.Config, error) {
	var out notice.Config
	var errs []error
	secret := func(key string, s config.Secret) config.Secret {
		text, err := s.Resolve(f, env)
		if err != nil {
			errs = append(errs, fmt.Errorf("approvals.notify.%s: %w", key, err))
		}
		return config.Secret(text)
	}
	from := f.Approvals.Notify
	for i, w := range from.Webhooks {
		out.Webhooks = append(out.Webhooks, notice.Webhook{
			Target: notice.Target{Name: w.Name, Tenant: w.Tenant, After: w.After}, URL: w.URL,
			Secret: secret(fmt.Sprintf("webhooks[%d].secret", i), w.Secret),
		})
	}
	if m := from.Mail; m != nil {
		out.Mail = &notice.Mail{
			Server: m.Server, TLS: m.TLS, CA: f.Path(m.CA), User: m.User, Password: secret("mail.password", m.Password), From: m.From,
		}
		for _, l := range m.Lists {
			out.Mail.Lists = append(out.Mail.Lists, notice.MailList{Target: notice.Target{Name: l.Name, Tenant: l.Tenant, After: l.After}, To: l.To})
		}
	}
	if s := from.Slack; s != nil {
		out.Slack = &notice.Slack{
			Target: notice.Target{Name: s.Name, Tenant: s.Tenant}, Channel: s.Channel, People: s.People,
			AppToken: secret("slack.app_token", s.AppToken), BotToken: secret("slack.bot_token", s.BotToken),
		}
	}
	return out, errors.Join(errs...)
}
