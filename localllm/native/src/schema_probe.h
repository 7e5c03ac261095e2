// Which families' grammars for calls keep to the tools' schemas: formats with texts between tags do so for what is no
// text, and some not at all.
#pragma once

#include "chat.h"

#include <functional>

// `make` gives what llama.cpp makes of the inputs `calling`, whose tools it is about.
bool lm_keeps_schemas(const common_chat_templates_inputs & calling,
                      const std::function<common_chat_params(const common_chat_templates_inputs &)> & make);
