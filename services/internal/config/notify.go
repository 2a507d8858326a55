package config

// Notify says whom to tell of approvals. The zero value tells nobody.
type Notify struct {
	// Webhooks are told as machines are.
	Webhooks []Webhook `yaml:"webhooks"`
	// Mail writes to people.
	Mail *Mail `yaml:"mail"`
	// Slack asks people in a channel.
	Slack *Slack `yaml:"slack"`
}

// Webhook is an address that takes signed requests.
type Webhook struct {
	// Name names it in logs and in what waits for it.
	Name string `yaml:"name"`
	// Tenant is the one whose approvals it is told of; empty for all.
	Tenant string `yaml:"tenant"`
	// After is the share of the time to decide after which it is told that nobody
	// has decided; 0 tells it at once.
	After float64 `yaml:"after"`
	// URL takes the requests.
	URL string `yaml:"url"`
	// Secret signs them: `whsec_` and base64, best as a reference.
	Secret Secret `yaml:"secret"`
}

// Mail is a server that takes mails, and who is written to.
type Mail struct {
	// Server is HOST:PORT, and TLS starttls, tls or none.
	Server string `yaml:"server"`
	TLS    string `yaml:"tls"`
	// CA is a PEM file of authorities; empty for those of the system.
	CA string `yaml:"ca"`
	// User and Password are the sender's account, and From its address.
	User     string `yaml:"user"`
	Password Secret `yaml:"password"`
	From     string `yaml:"from"`
	// Lists are written to.
	Lists []MailList `yaml:"lists"`
}

// MailList is people who are written to.
type MailList struct {
	// Name, Tenant and After are as those of a [Webhook].
	Name   string  `yaml:"name"`
	Tenant string  `yaml:"tenant"`
	After  float64 `yaml:"after"`
	// To are their addresses.
	To []string `yaml:"to"`
}

// Slack is a channel in which people are asked, by Socket Mode.
type Slack struct {
	// Name names it, and Tenant is the one in which people vote.
	Name   string `yaml:"name"`
	Tenant string `yaml:"tenant"`
	// AppToken and BotToken are the app's, best as references.
	AppToken Secret `yaml:"app_token"`
	BotToken Secret `yaml:"bot_token"`
	// Channel is its id.
	Channel string `yaml:"channel"`
	// People are subjects by the ids of their users in Slack.
	People map[string]string `yaml:"people"`
}
