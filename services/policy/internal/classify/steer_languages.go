package classify

import "slices"

var forms = slices.Concat(steering, steeringElsewhere)

// steeringElsewhere contains the forms for texts in other languages. The forms match folded texts, in which apostrophes
// are spaces. They do not contain \b next to non-ASCII letters, because \b in RE2 supports only ASCII.
var steeringElsewhere = []form{
	// Spanish, Portuguese, Italian, French
	newForm(overrules, "instrucc|instruç|istruzioni|instructions|indicac|indicaç|consignes|reglas|regras|regole|règles|directiv|diretriz|direttive",
		`\b(?:ignor[ae][sz]?|ignorar|ignorez|olvid[ae]|olvidar|omit[ae]|descart[ae]|descarte|esqueça|desconsider[ae]|dimentica|dimenticate|oublie[sz]?|ne tiens pas compte|no tengas en cuenta)\b.{0,40}`+
			`(?:instrucciones|instruções|istruzioni|instructions|indicaciones|indicações|indicazioni|consignes|reglas|regras|regole|règles|directivas|directrices|diretrizes|direttive|directives)`),
	newForm(conceals, "usuario|usuário|utente|utilisateur|persona|pessoa|personne|nadie|ninguém|nessuno",
		`(?:\bno (?:se )?(?:le |les |lo )?|não (?:lhe |o )?|\bnon |\bn[e ] ?(?:le |lui |en )?|\bsin |\bsem |\bsenza |\bsans (?:le |en )?|\bnunca (?:le )?|\bjamais |\bmai )`+
			`(?:lo |l )?(?:digas|diga|decir|decírselo|menciones|mencione|mencionar|informes|informe|informar|reveles|revele|revelar|cuentes|cuente|muestres|muestre|avises|avise|avisar|`+
			`conte|contar|dirlo|dire|dica|menzionare|informare|rivelare|mostrare|avvisare|dis|dites|parle|parlez|mentionne|mentionnez|informe|informez|informer|révèle|révélez|montre|montrez|préviens|prévenez|prévenir|mostre)[a-z]*\b`+
			`.{0,30}(?:usuario|usuário|utente|utilisateur|persona|pessoa|personne|nadie|ninguém|nessuno)`),
	newForm(goesFirst, "antes de|prima di|avant d", `(?:antes de (?:usar|utilizar|llamar|chamar|invocar)|prima di (?:usare|utilizzare|chiamare)|avant d(?:e |\s)?(?:utiliser|appeler|employer|d utiliser)).{0,25}(?:otr[ao]|outr[ao]|altr[oia]|autre|cualquier|qualquer|qualsiasi|tout)`),
	newForm(wantsTalk, "conversa|conversación|conversation", `(?:tod[ao] (?:la|a) (?:conversación|conversa)|histor(?:ial|ico|iale)?[^.]{0,12}(?:de la conversación|da conversa)|histórico[^.]{0,12}da conversa|(?:toute la|l ensemble de la|historique de la) conversation|(?:intera|tutta la) conversazione|cronologia della conversazione)`),
	// German
	newForm(overrules, "anweisung|regeln|vorgaben|instruktion|richtlinien", `(?:ignorier[a-z]*|vergiss|vergessen sie|missachte[a-z]*|verwirf)[^.]{0,40}(?:anweisung|regeln|vorgaben|instruktion|richtlinien)`),
	newForm(conceals, "benutzer|nutzer|anwender|niemand",
		`(?:sage?|sagen sie|erzähle?|erwähne|verrate|zeige?|teile?|melde|informiere)\b[^.]{0,30}(?:benutzer|nutzer|anwender|niemand)[a-z]*[^.]{0,25}(?:nichts|nicht|davon)|(?:benutzer|nutzer|anwender)[a-z]* (?:darf|soll|muss)[^.]{0,25}(?:nichts|nicht)|`+
			`(?:verschweige|verheimliche|verbirg)[^.]{0,30}(?:benutzer|nutzer|anwender)|ohne [^.]{0,12}(?:benutzer|nutzer|anwender)[^.]{0,12} zu (?:fragen|informieren)`),
	newForm(goesFirst, "bevor", `bevor (?:du|sie|ein|irgendein)[^.]{0,25}(?:ander|irgendein)[^.]{0,20}(?:werkzeug|tool)`),
	newForm(wantsTalk, "verlauf|unterhaltung|gespräch", `(?:gesamt|ganz|vollständig|komplett)[a-z]* (?:chat)?(?:verlauf|unterhaltung|gespräch|konversation)`),
	// Chinese
	newForm(overrules, "指令|指示|规则|規則|提示|命令", `(?:忽略|无视|無視|忘记|忘掉|忘記|不要遵守|覆盖).{0,15}(?:指令|指示|规则|規則|提示|命令)`),
	newForm(conceals, "用户|使用者|用戶|他人|任何人|人类", `(?:不要|不得|不可|请勿|勿|别|切勿|无需|不必|不能).{0,4}(?:告诉|告知|通知|提醒|透露|提及|告訴|展示给|显示给|让).{0,6}(?:用户|使用者|用戶|他人|任何人|人类)|(?:对|向).{0,2}(?:用户|使用者|用戶).{0,4}(?:隐瞒|保密|隐藏|隱瞞)|(?:隐瞒|瞒着).{0,4}(?:用户|使用者|用戶)`),
	newForm(goesFirst, "工具", `(?:使用|调用|呼叫).{0,4}(?:任何|其他|其它|别的).{0,6}工具.{0,3}(?:之前|前|以前)`),
	newForm(wantsTalk, "对话|聊天|提示词", `(?:完整|全部|所有|整个).{0,3}(?:对话|聊天)(?:记录|历史|内容|上下文)?|(?:传入|发送|包含|附上).{0,8}系统提示词`),
	// Japanese
	newForm(overrules, "無視|忘れ", `(?:指示|命令|ルール|プロンプト|規則).{0,12}(?:無視|忘れ)`),
	newForm(conceals, "ユーザ|利用者|使用者", `(?:ユーザーー?|ユーザ|利用者|使用者).{0,8}(?:伝えない|伝えず|知らせない|知らせず|言わない|見せない|教えない|報告しない|秘密|隠)`),
	newForm(goesFirst, "ツール", `(?:他|ほか|別)の.{0,6}ツール.{0,12}前に`),
	newForm(wantsTalk, "会話|プロンプト", `(?:会話|チャット)(?:の)?(?:履歴|全体|全文|全部)|システムプロンプト.{0,8}(?:含め|入れ|送)`),
	// Korean (NFKC does not decompose the syllables)
	newForm(overrules, "무시|잊", `(?:지시|명령|규칙|프롬프트|지침)[^.]{0,10}(?:무시|잊)`),
	newForm(conceals, "사용자", `사용자[^.]{0,8}(?:알리지|말하지|보여주지|언급하지|공개하지|모르게|숨기)`),
	newForm(goesFirst, "도구", `(?:다른|모든|어떤)[^.]{0,8}도구[^.]{0,12}전에`),
	newForm(wantsTalk, "대화|프롬프트", `(?:전체|모든) ?대화|대화 ?(?:기록|내용) ?(?:전체|전부|모두)|시스템 ?프롬프트를? ?(?:포함|보내|전달)`),
	// Russian
	newForm(overrules, "инструкци|указани|правил|команд", `(?:игнорир|проигнорир|забуд|отмени)[^.]{0,40}(?:инструкци|указани|правил|команд)`),
	newForm(conceals, "пользовател|человек|никому", `(?:не|никогда не|ничего не) (?:сообщай|говори|упоминай|показывай|раскрывай|рассказывай|уведомляй)[^.]{0,25}(?:пользовател|человек|никому)|(?:скрой|скрывай|утаи)[^.]{0,20}(?:пользовател|человек)|(?:втайне|тайно) от пользовател`),
	newForm(goesFirst, "инструмент", `(?:перед|прежде|до)[^.]{0,30}(?:друг|люб|ины)[^.]{0,20}инструмент`),
	newForm(wantsTalk, "переписк|диалог|беседы|промпт", `(?:всю|весь|полн[а-я]+) (?:переписк|диалог|истори[а-я]+ (?:беседы|чата|диалога))|системн[а-я]+ промпт`),
}
